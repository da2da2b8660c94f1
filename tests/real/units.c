/* A library of translation units with device code. UNITS is UNIT(wrapper, kernel) for each. */
#include "../e2e/embedded/start.h"

UNITS

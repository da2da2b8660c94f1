#include "generate.h"

GENERATOR(philox4x32_10)

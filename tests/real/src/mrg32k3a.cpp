#include "generate.h"

GENERATOR(mrg32k3a)

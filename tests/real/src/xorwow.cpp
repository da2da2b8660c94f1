#include "generate.h"

GENERATOR(xorwow)

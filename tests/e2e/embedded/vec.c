/* The library of the embedded project: three units, as in the HIP project. */
#include "start.h"

UNIT(add, "_Z3addPfPKf")
UNIT(multiply, "_Z8multiplyPfPKf")
UNIT(dot, "_Z3dotPfPKfS1_")

static _Thread_local int calls;
static int twice(int n) { return 2 * n; }
static int (*volatile operation)(int) = twice;

int vec_add(int n) {
    add_launch();
    return n + 1;
}

int vec_multiply(int n) {
    multiply_launch();
    return operation(n);
}

int vec_dot(int n) {
    dot_launch();
    return 7 * n + ++calls;
}

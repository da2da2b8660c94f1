/* The executables of the embedded project. */
#include "start.h"

#include <stdio.h>

UNIT(app, "_Z4fillPff")

int vec_add(int n);
int vec_multiply(int n);
int vec_dot(int n);

int main(void) {
    app_launch();
    printf("linked %d %d %d\n", vec_add(3), vec_multiply(3), vec_dot(3));
    return 0;
}

#include "vector.h"

#include <cstdio>

int main() {
    float a[] = {1, 2, 3}, b[] = {4, 5, 6};
    std::printf("added %u, scaled %u\n", vector_add(a, b, 3), vector_scale(a, 2, 3));
}

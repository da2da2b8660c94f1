#include "vector.h"

#include <hip/hip_runtime.h>

__global__ void add(float *a, const float *b) { a[threadIdx.x] += b[threadIdx.x]; }

unsigned vector_add(float *a, const float *b, unsigned n) {
    add<<<1, n>>>(a, b);
    return n;
}

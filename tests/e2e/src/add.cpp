#include "vec.h"

#include <hip/hip_runtime.h>

__global__ void add(float *a, const float *b) { a[threadIdx.x] += b[threadIdx.x]; }

int vec_add(float *a, const float *b, int n) {
    add<<<1, n>>>(a, b);
    return n + 1;
}

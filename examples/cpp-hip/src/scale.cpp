#include "vector.h"

#include <hip/hip_runtime.h>

__global__ void scale(float *a, float factor) { a[threadIdx.x] *= factor; }

unsigned vector_scale(float *a, float factor, unsigned n) {
    scale<<<1, n>>>(a, factor);
    return n;
}

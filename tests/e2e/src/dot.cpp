#include "vec.h"

#include <hip/hip_runtime.h>

__device__ float scale = 2.0f;

__global__ void dot(float *result, const float *a, const float *b) {
    result[threadIdx.x] = scale * a[threadIdx.x] * b[threadIdx.x];
}

__global__ void clear(float *result) { result[threadIdx.x] = 0; }

// Dynamic initialisation and a thread-local variable: the dynamic loader handles both.
struct Counter {
    int value;
    Counter() : value(7) {}
};
static Counter counter;
static thread_local int calls;

int vec_dot(float *result, const float *a, const float *b, int n) {
    clear<<<1, n>>>(result);
    dot<<<1, n>>>(result, a, b);
    return counter.value * n + ++calls;
}

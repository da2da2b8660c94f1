#include <hip/hip_runtime.h>

extern "C" __global__ void add(float *a, const float *b) { a[threadIdx.x] += b[threadIdx.x]; }

extern "C" __global__ void scale(float *a, float factor) { a[threadIdx.x] *= factor; }

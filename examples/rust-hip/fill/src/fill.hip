#include <hip/hip_runtime.h>

__global__ void fill(float *a, float value) { a[threadIdx.x] = value; }

extern "C" int fill_all(float *a, float value, unsigned n) {
    fill<<<1, n>>>(a, value);
    return n;
}

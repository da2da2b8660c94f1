#include <hip/hip_runtime.h>

__global__ void sum(float *result, const float *a) { *result += a[threadIdx.x]; }

extern "C" int stats_sum(float *result, const float *a, unsigned n) {
    sum<<<1, n>>>(result, a);
    return n + 1;
}

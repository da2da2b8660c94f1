#include <hip/hip_runtime.h>

extern "C" __global__ void to_half(_Float16 *to, const float *from) {
    to[threadIdx.x] = static_cast<_Float16>(from[threadIdx.x]);
}

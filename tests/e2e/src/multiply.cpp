#include "vec.h"

#include <hip/hip_runtime.h>

#include <stdexcept>

__global__ void multiply(float *a, const float *b) { a[threadIdx.x] *= b[threadIdx.x]; }

// Unwinding needs .eh_frame and .gcc_except_table at their addresses.
static int checked(int n) {
    if (n > 4)
        throw std::out_of_range("n");
    return n * 2;
}

int vec_multiply(float *a, const float *b, int n) {
    multiply<<<1, n>>>(a, b);
    try {
        return checked(n);
    } catch (const std::out_of_range &) {
        return -1;
    }
}

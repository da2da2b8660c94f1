// A kernel that fills memory with numbers from one of rocRAND's generators, and a function that launches
// it.
#pragma once

#include <hip/hip_runtime.h>
#include <rocrand/rocrand_kernel.h>

#define GENERATOR(NAME)                                                                            \
    __global__ void fill_##NAME(float *out, unsigned n, unsigned long long seed) {                 \
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;                                        \
        rocrand_state_##NAME state;                                                                \
        rocrand_init(seed, i, 0, &state);                                                          \
        if (i < n)                                                                                 \
            out[i] = rocrand_normal(&state) + rocrand_uniform(&state);                             \
    }                                                                                              \
    extern "C" int random_##NAME(float *out, unsigned n, unsigned long long seed) {                \
        fill_##NAME<<<(n + 255) / 256, 256>>>(out, n, seed);                                       \
        return hipGetLastError();                                                                  \
    }

// The part of HIP's headers that this project needs, so that clang builds it without ROCm.
#pragma once

#include <cstddef>
// clang uses its own wrapper of <new> if it finds a HIP installation. The wrapper needs malloc().
#include <cstdlib>

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

using hipError_t = int;
using hipStream_t = struct ihipStream_t *;
enum hipMemcpyKind { hipMemcpyHostToDevice = 1, hipMemcpyDeviceToHost = 2 };

// The functions that clang's code for `kernel<<<grid, block>>>(…)` calls.
extern "C" {
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared = 0,
                                      hipStream_t stream = nullptr);
hipError_t __hipPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, hipStream_t *stream);
hipError_t hipGetLastError(void);
hipError_t hipLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                           size_t shared, hipStream_t stream);
hipError_t hipMalloc(void **memory, size_t size);
hipError_t hipMemcpy(void *to, const void *from, size_t size, hipMemcpyKind kind);
hipError_t hipFree(void *memory);
}

template <class T> hipError_t hipMalloc(T **memory, size_t size) {
    return hipMalloc(reinterpret_cast<void **>(memory), size);
}

struct ThreadIndex {
    unsigned x;
};
#define threadIdx (ThreadIndex{__builtin_amdgcn_workitem_id_x()})

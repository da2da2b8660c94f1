// A kernel, with the few declarations of the HIP headers that it needs.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))

struct dim3 {
    unsigned x, y, z;
};

extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
extern "C" int __hipPushCallConfiguration(dim3, dim3, unsigned long, void *);
extern "C" int __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, void **);

__global__ void add(float *a, const float *b) { *a += *b; }

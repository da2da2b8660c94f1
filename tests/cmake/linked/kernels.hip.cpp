// A kernel of a static library.
#define __global__ __attribute__((global))

struct dim3 {
    unsigned x, y, z;
};

extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
extern "C" int __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, void **);

__global__ void scale(float *a, float factor) { *a *= factor; }

// Launches its own kernel, the kernels of the library that it is linked with, and those of the copies of
// the library that its arguments name.
#include "vec.h"

#include <hip/hip_runtime.h>

#include <cstdio>
#include <dlfcn.h>

__global__ void fill(float *a, float value) { a[threadIdx.x] = value; }

static float a[64], b[64], result[64];

template <typename... Arguments>
static int call(void *library, const char *name, Arguments... arguments) {
    auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
    return function ? function(arguments...) : -1000;
}

int main(int count, char **paths) {
    fill<<<1, 64>>>(a, 1.0f);
    std::printf("linked %d %d %d %d\n", vec_add(a, b, 3), vec_multiply(a, b, 3),
                vec_multiply(a, b, 5), vec_dot(result, a, b, 3));
    for (int i = 1; i < count; i++) {
        void *library = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            std::printf("%s\n", dlerror());
            return 1;
        }
        const float *from = b;
        std::printf("loaded %d %d %d %d\n", call(library, "vec_add", +a, from, 3),
                    call(library, "vec_multiply", +a, from, 3),
                    call(library, "vec_multiply", +a, from, 5),
                    call(library, "vec_dot", +result, (const float *)a, from, 3));
    }
    return 0;
}

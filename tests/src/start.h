/* The start-up code that clang writes for a translation unit with device code, in C. */
#pragma once

#include <stddef.h>

struct dim3 {
    unsigned x, y, z;
};

void **__hipRegisterFatBinary(const void *wrapper);
void __hipUnregisterFatBinary(void **module);
void __hipRegisterFunction(void **module, const void *host_function, char *device_function,
                           const char *device_name, unsigned thread_limit, void *tid, void *bid,
                           void *block, void *grid, int *warp_size);
int hipLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments,
                    size_t shared, void *stream);

/* A translation unit whose wrapper is `unit` and whose kernel is `device_name`. */
#define UNIT(unit, device_name)                                                                    \
    extern const char unit[] __attribute__((visibility("hidden")));                                \
    static char unit##_kernel;                                                                     \
    static void **unit##_module;                                                                   \
    __attribute__((constructor)) static void unit##_register(void) {                               \
        unit##_module = __hipRegisterFatBinary(unit);                                              \
        __hipRegisterFunction(unit##_module, &unit##_kernel, device_name, device_name, -1u, NULL,  \
                              NULL, NULL, NULL, NULL);                                             \
    }                                                                                              \
    __attribute__((destructor)) static void unit##_unregister(void) {                              \
        __hipUnregisterFatBinary(unit##_module);                                                   \
    }                                                                                              \
    static void unit##_launch(void) {                                                              \
        struct dim3 one = {1, 1, 1};                                                               \
        hipLaunchKernel(&unit##_kernel, one, one, NULL, 0, NULL);                                  \
    }

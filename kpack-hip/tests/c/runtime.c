/* A HIP runtime that prints its NAME for each wrapper. With -DMARKERS it imports the function of runtimes that
 * read markers. */
#include <stdint.h>
#include <stdio.h>

#ifdef MARKERS
__attribute__((weak)) int kpack_load_code_object(void);
int (*const load)(void) = kpack_load_code_object;
#endif

void **__hipRegisterFatBinary(const uint32_t *wrapper) {
    static void *module;
    printf("%s %s\n", NAME, *wrapper == 0x48495046 ? "fat" : "split");
    return &module;
}

void __hipUnregisterFatBinary(void **module) {
    (void)module;
}

void __hipRegisterFunction(void **module, const void *host) {
    (void)module;
    (void)host;
}

int hipLaunchKernel(const void *host) {
    (void)host;
    return 0;
}

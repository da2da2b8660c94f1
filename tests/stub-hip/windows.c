/* A stub HIP runtime for Windows, amdhip64_10.dll. It says on standard output what start-up code registers:
 *
 *   fat                   a fat wrapper
 *   loaded SIZE SHA256    a split one, and the code object for the GPU STUB_HIP_AGENT
 *   missing ERROR         a split one without code, and this error number
 */
#include <rocm_kpack/kpack.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sha256.h"

#define EXPORT __declspec(dllexport)

struct wrapper {
    uint32_t magic;
    uint32_t version;
    const void *binary;
    uint64_t co_index;
};

static void load(const struct wrapper *wrapper) {
    static kpack_cache_t cache;
    const char *agent = getenv("STUB_HIP_AGENT");
    char path[4096];
    void *code = NULL;
    size_t size = 0;
    if (!cache && kpack_cache_create(&cache))
        abort();
    kpack_error_t error = kpack_discover_binary_path(wrapper->binary, path, sizeof path, NULL);
    if (!error)
        error = kpack_load_code_object(cache, wrapper->binary, path, (uint32_t)wrapper->co_index, &agent, 1, &code,
                                       &size);
    if (error) {
        printf("missing %d\n", (int)error);
    } else {
        char digest[65];
        sha256(code, size, digest);
        printf("loaded %llu %s\n", (unsigned long long)size, digest);
    }
    kpack_free_code_object(code);
}

EXPORT void **__hipRegisterFatBinary(const void *data) {
    const struct wrapper *wrapper = data;
    if (!memcmp(&wrapper->magic, "FPIH", 4))
        puts("fat");
    else if (!memcmp(&wrapper->magic, "HIPK", 4))
        load(wrapper);
    else
        abort();
    fflush(stdout);
    return (void **)data;
}

EXPORT void __hipUnregisterFatBinary(void **handle) {
    (void)handle;
}

EXPORT void __hipRegisterFunction(void) {}

EXPORT int __hipPopCallConfiguration(void) {
    return 0;
}

EXPORT int hipLaunchKernel(void) {
    return 0;
}

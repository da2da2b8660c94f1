/* Loads the code objects of a split DLL through a loader for Windows:
 *
 *   windows.exe LOADER.dll SPLIT.dll ISA...
 *   windows.exe LOADER.dll ARCHIVE.kpack
 *
 * It prints, with SIZE and SHA256 or the number of an error,
 *
 *   load ISA INDEX …          what kpack_load_code_object gives for each wrapper
 *   kernel NAME TARGET …      what kpack_get_kernel gives for each entry of the archive
 */
#include <windows.h>

#include <rocm_kpack/kpack.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../stub-hip/sha256.h"

struct wrapper {
    uint32_t magic;
    uint32_t version;
    const void *binary;
    uint64_t co_index;
};

static HMODULE loader;

static void *function(const char *name) {
    void *found = (void *)GetProcAddress(loader, name);
    if (!found) {
        printf("no function %s\n", name);
        exit(1);
    }
    return found;
}
/* The function of the loader with the type that the header says. */
#define LOADER(name) ((__typeof__(&name))function(#name))

static void end(kpack_error_t error, const void *code, size_t size) {
    if (error) {
        printf(" error %d\n", (int)error);
        return;
    }
    char digest[65];
    sha256(code, size, digest);
    printf(" %llu %s\n", (unsigned long long)size, digest);
}

static int archive(const char *path) {
    kpack_archive_t archive = NULL;
    kpack_error_t error = LOADER(kpack_open)(path, &archive);
    if (error) {
        printf("open");
        end(error, NULL, 0);
        return 0;
    }
    size_t kernels = 0, targets = 0;
    LOADER(kpack_get_binary_count)(archive, &kernels);
    LOADER(kpack_get_architecture_count)(archive, &targets);
    for (size_t k = 0; k < kernels; k++) {
        for (size_t t = 0; t < targets; t++) {
            const char *kernel = NULL, *target = NULL;
            void *code = NULL;
            size_t size = 0;
            LOADER(kpack_get_binary)(archive, k, &kernel);
            LOADER(kpack_get_architecture)(archive, t, &target);
            error = LOADER(kpack_get_kernel)(archive, kernel, target, &code, &size);
            printf("kernel %s %s", kernel, target);
            end(error, code, size);
            LOADER(kpack_free_kernel)(code);
        }
    }
    LOADER(kpack_close)(archive);
    return 0;
}

int main(int argc, char **argv) {
    loader = LoadLibraryExA(argv[1], NULL, LOAD_WITH_ALTERED_SEARCH_PATH);
    if (!loader) {
        printf("cannot load %s: error %lu\n", argv[1], GetLastError());
        return 1;
    }
    if (argc == 3)
        return archive(argv[2]);
    HMODULE library = LoadLibraryA(argv[2]);
    if (!library) {
        printf("cannot load %s: error %lu\n", argv[2], GetLastError());
        return 1;
    }
    const struct wrapper *const *wrappers = (const void *)GetProcAddress(library, "fixture_wrappers");
    kpack_cache_t cache = NULL;
    if (LOADER(kpack_cache_create)(&cache))
        return 1;
    for (int at = 3; at < argc; at++) {
        const char *isa = argv[at];
        for (int i = 0; wrappers[i]; i++) {
            const struct wrapper *wrapper = wrappers[i];
            char path[4096];
            void *code = NULL;
            size_t size = 0;
            kpack_error_t error =
                LOADER(kpack_discover_binary_path)(wrapper->binary, path, sizeof path, NULL);
            if (!error)
                error = LOADER(kpack_load_code_object)(cache, wrapper->binary, path,
                                                       (uint32_t)wrapper->co_index, &isa, 1, &code, &size);
            printf("load %s %d", isa, (int)wrapper->co_index);
            end(error, code, size);
            LOADER(kpack_free_code_object)(code);
        }
    }
    LOADER(kpack_cache_destroy)(cache);
    return 0;
}

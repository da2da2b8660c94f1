/* Asks a loader for a code object, as a HIP runtime does:
 *
 *   ask LOADER.so MARKER BINARY INDEX OUTPUT ISA...
 *
 * MARKER is a file with a marker, or @SYMBOL: the wrapper of this name in BINARY, which is loaded. Prints `code SIZE` and writes OUTPUT, or `error NUMBER`, a `kpack_error_t`.
 */
#ifdef _WIN32
#include <windows.h>
#define dlopen(path, how) ((void *)LoadLibraryA(path))
#define dlsym(library, name) ((void *)GetProcAddress((HMODULE)(library), name))
#define dlerror() "LoadLibrary failed"
#else
#include <dlfcn.h>
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <rocm_kpack/kpack.h>

static void *loader;

static void *function(const char *name) {
    void *found = dlsym(loader, name);
    if (!found) {
        printf("no function %s\n", name);
        exit(1);
    }
    return found;
}
/* The function of the loader with the type that the header says. */
#define LOADER(name) ((__typeof__(&name))function(#name))

/* What a HIP runtime gets of a split binary. */
struct wrapper {
    uint32_t magic, version;
    const void *marker;
    uint32_t index, unused;
};

static const void *marker_of(const char *name, const char *binary, uint32_t index) {
    /* A marker has no size of its own. */
    static unsigned char bytes[1 << 17];
    if (*name == '@') {
        void *library = dlopen(binary, RTLD_NOW);
        const struct wrapper *wrapper = library ? dlsym(library, name + 1) : NULL;
        if (!wrapper)
            printf("cannot load %s: %s\n", binary, dlerror());
        else if (wrapper->magic != 0x4b504948 || wrapper->version != 1 || wrapper->index != index)
            printf("%s is no wrapper of kernel %u\n", name + 1, index);
        else
            return wrapper->marker;
        exit(1);
    }
    FILE *file = fopen(name, "rb");
    if (!file) {
        printf("cannot open %s\n", name);
        exit(1);
    }
    fread(bytes, 1, sizeof bytes / 2, file);
    return bytes;
}

int main(int argc, char **argv) {
    if (argc < 7)
        return 2;
    uint32_t index = (uint32_t)atoi(argv[4]);
    const void *marker = marker_of(argv[2], argv[3], index);
    loader = dlopen(argv[1], RTLD_NOW);
    kpack_cache_t cache = NULL;
    if (!loader || LOADER(kpack_cache_create)(&cache)) {
        printf("cannot start: %s\n", loader ? argv[1] : dlerror());
        return 1;
    }
    void *code = NULL;
    size_t size = 0;
    kpack_error_t error = LOADER(kpack_load_code_object)(
        cache, marker, argv[3], index, (const char *const *)argv + 6, (size_t)argc - 6, &code, &size);
    if (error) {
        printf("error %d\n", (int)error);
        return 0;
    }
    FILE *file = fopen(argv[5], "wb");
    if (!file || fwrite(code, 1, size, file) != size || fclose(file))
        return 1;
    printf("code %llu\n", (unsigned long long)size);
    return 0;
}

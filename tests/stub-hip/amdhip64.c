/* A stub HIP runtime. The start-up code of HIP programs calls it like the real one; it reports the calls
 * instead of using a GPU. It loads code objects of split binaries as the real one does, through
 * librocm_kpack.so.
 *
 * Built with -DWITHOUT_MARKERS, it is like an older runtime: it takes fat wrappers only, returns null for
 * split ones, and does not need librocm_kpack.so.
 *
 *   STUB_HIP_REPORT  file to append the report to; if unset, nothing is reported
 *   STUB_HIP_DUMP    directory to put the bundle of each fat wrapper into, as found in memory
 *   STUB_HIP_AGENT   ISAs of the simulated GPU, separated by commas, the preferred one first: it loads
 *                    code objects of split binaries for them
 *
 * One line for each event, fields separated by tabs. WRAPPER is the wrapper's address relative to
 * where BINARY was loaded, in hexadecimal. A wrapper that is in no binary has the BINARY `memory`.
 *
 *   fat       BINARY WRAPPER [DUMPED-FILE]
 *   entry     BINARY WRAPPER ID SIZE SHA256     a code object of its bundle (with WITHOUT_MARKERS)
 *   split     BINARY WRAPPER CO_INDEX KERNEL_NAME SEARCH_PATH...
 *   loaded    BINARY WRAPPER SIZE SHA256        the code object for the GPU
 *   missing   BINARY WRAPPER ERROR              no code object, but this error number
 *   function  BINARY WRAPPER DEVICE_NAME
 *   launch    BINARY WRAPPER DEVICE_NAME
 *
 * Like the real runtime, it reads no more of a wrapper, bundle or marker than their own sizes allow.
 * Anything unexpected ends the process with a message.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#ifndef WITHOUT_MARKERS
#include <rocm_kpack/kpack.h>
#endif
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sha256.h"

#define EXPORT __attribute__((visibility("default")))

struct wrapper {
    uint32_t magic;
    uint32_t version;
    const void *binary;
    uint64_t co_index;
};

struct module {
    const struct wrapper *wrapper;
    char *binary;
    uintptr_t offset;
    struct module *next;
};

struct function {
    const void *host;
    const struct module *module;
    const char *device_name;
    struct function *next;
};

struct dim3 {
    uint32_t x, y, z;
};

static const uint32_t HIPF = 0x48495046;
#ifndef WITHOUT_MARKERS
static const uint32_t HIPK = 0x4B504948;
#endif
static struct module *modules;
static struct function *functions;

static _Noreturn void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("stub HIP runtime: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

static void *allocate(size_t size) {
    void *memory = calloc(1, size);
    if (!memory)
        die("out of memory");
    return memory;
}

/* The report, opened for each line: several processes may append to one. */
static FILE *report(const char *event, const struct module *module) {
    const char *path = getenv("STUB_HIP_REPORT");
    if (!path)
        return NULL;
    FILE *file = fopen(path, "a");
    if (!file)
        die("cannot append to STUB_HIP_REPORT=%s", path);
    fprintf(file, "%s\t%s\t%jx", event, module->binary, (uintmax_t)module->offset);
    return file;
}

static void end(FILE *file) {
    fputc('\n', file);
    if (fclose(file))
        die("cannot write the report");
}

/* ---- fat ---- */

static uint64_t little_endian(const unsigned char *bytes, int size) {
    uint64_t value = 0;
    while (size-- > 0)
        value = value << 8 | bytes[size];
    return value;
}

/* Size of the bundle, from its own header. */
static uint64_t bundle_size(const unsigned char *bundle) {
    if (!memcmp(bundle, "__CLANG_OFFLOAD_BUNDLE__", 24)) {
        uint64_t count = little_endian(bundle + 24, 8), size = 32;
        const unsigned char *entry = bundle + 32;
        for (; count > 0; count--) {
            uint64_t last = little_endian(entry, 8) + little_endian(entry + 8, 8);
            if (last > size)
                size = last;
            entry += 24 + little_endian(entry + 16, 8);
        }
        return size > (uint64_t)(entry - bundle) ? size : (uint64_t)(entry - bundle);
    }
    if (!memcmp(bundle, "CCOB", 4)) {
        switch (little_endian(bundle + 4, 2)) {
        case 2:
            return little_endian(bundle + 8, 4);
        case 3:
            return little_endian(bundle + 8, 8);
        default:
            die("a CCOB header of version %d does not tell its size",
                (int)little_endian(bundle + 4, 2));
        }
    }
    die("no offload bundle: starts with %02x %02x %02x %02x", bundle[0], bundle[1], bundle[2],
        bundle[3]);
}

static void report_fat(const struct module *module) {
    static int dumped;
    const char *directory = getenv("STUB_HIP_DUMP");
    uint64_t size = bundle_size(module->wrapper->binary);
    FILE *file = report("fat", module);
    if (!file)
        return;
    if (directory) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%ld-%d.bundle", directory, (long)getpid(), dumped++);
        FILE *dump = fopen(path, "wb");
        if (!dump || fwrite(module->wrapper->binary, 1, size, dump) != size || fclose(dump))
            die("cannot write %s", path);
        fprintf(file, "\t%s", path);
    }
    end(file);
}

#ifdef WITHOUT_MARKERS
/* Reads the table of a bundle that is not compressed. */
static void report_entries(const struct module *module) {
    const unsigned char *bundle = module->wrapper->binary, *entry = bundle + 32;
    for (uint64_t count = little_endian(bundle + 24, 8); count > 0; count--) {
        uint64_t offset = little_endian(entry, 8), size = little_endian(entry + 8, 8);
        int length = (int)little_endian(entry + 16, 8);
        if (entry + 24 + length > bundle + 4096)
            die("the bundle's table is longer than 4096 bytes");
        FILE *file = size ? report("entry", module) : NULL;
        if (file) {
            char digest[65];
            sha256(bundle + offset, size, digest);
            fprintf(file, "\t%.*s\t%ju\t%s", length, (const char *)entry + 24, (uintmax_t)size,
                    digest);
            end(file);
        }
        entry += 24 + length;
    }
}

#else
/* ---- split: the marker is a MessagePack map ---- */

static uint64_t big_endian(const unsigned char **at, int size) {
    uint64_t value = 0;
    while (size-- > 0)
        value = value << 8 | *(*at)++;
    return value;
}

static uint64_t header(const unsigned char **at, const char *what, unsigned fixed, unsigned mask,
                       unsigned first_long) {
    unsigned byte = *(*at)++;
    if ((byte & ~mask) == fixed)
        return byte & mask;
    /* str: 8, 16, 32 bits; array and map: 16, 32 bits */
    int shortest = first_long == 0xd9 ? 1 : 2;
    for (int size = shortest; size <= 4; size *= 2, first_long++)
        if (byte == first_long)
            return big_endian(at, size);
    die("the marker has %#x where a %s was expected", byte, what);
}

static char *read_string(const unsigned char **at) {
    uint64_t length = header(at, "string", 0xa0, 0x1f, 0xd9);
    if (length > 4096)
        die("a string of %ju bytes in the marker", (uintmax_t)length);
    char *text = allocate(length + 1);
    memcpy(text, *at, length);
    *at += length;
    return text;
}

struct marker {
    char *kernel_name;
    char **search_paths;
    size_t path_count;
};

static struct marker read_marker(const unsigned char *at) {
    struct marker marker = {0};
    uint64_t keys = header(&at, "map", 0x80, 0x0f, 0xde);
    while (keys-- > 0) {
        char *key = read_string(&at);
        if (!strcmp(key, "kernel_name")) {
            marker.kernel_name = read_string(&at);
        } else if (!strcmp(key, "kpack_search_paths")) {
            marker.path_count = header(&at, "array", 0x90, 0x0f, 0xdc);
            if (marker.path_count > 1024)
                die("%zu search paths in the marker", marker.path_count);
            marker.search_paths = allocate((marker.path_count + 1) * sizeof(char *));
            for (size_t i = 0; i < marker.path_count; i++)
                marker.search_paths[i] = read_string(&at);
        } else if (!strcmp(key, "code_blake3")) {
            /* The loader compares them: target IDs, each with the 8 bytes of an ID. */
            uint64_t targets = header(&at, "map", 0x80, 0x0f, 0xde);
            while (targets-- > 0) {
                free(read_string(&at));
                if (at[0] != 0xc4 || at[1] != 8)
                    die("a code ID in the marker is not 8 bytes");
                at += 10;
            }
        } else if (!strcmp(key, "padding")) {
            /* Bytes that readers skip, with a size of 16 bits. */
            if (*at++ != 0xc5)
                die("the padding in the marker has another form");
            uint64_t size = big_endian(&at, 2);
            at += size;
        } else {
            die("unknown key `%s` in the marker", key);
        }
        free(key);
    }
    if (!marker.kernel_name || !marker.path_count)
        die("the marker lacks kernel_name or kpack_search_paths");
    return marker;
}

/* Loads the wrapper's code object for the simulated GPU. */
static void load(const struct module *module, const char *agent) {
    static kpack_cache_t cache;
    const struct wrapper *wrapper = module->wrapper;
    const char *isas[16];
    char path[4096], *list = strdup(agent), *rest = list;
    size_t count = 0;
    while (rest && count < 16)
        isas[count++] = strsep(&rest, ",");
    if (!cache && kpack_cache_create(&cache))
        die("kpack_cache_create failed");
    kpack_error_t error = kpack_discover_binary_path(wrapper->binary, path, sizeof path, NULL);
    if (error || strcmp(path, module->binary))
        die("%s: kpack_discover_binary_path returns %d and finds %s", module->binary, error,
            error ? "nothing" : path);
    void *code = NULL;
    size_t size = 0;
    error = kpack_load_code_object(cache, wrapper->binary, path, (uint32_t)wrapper->co_index, isas,
                                   count, &code, &size);
    FILE *file = report(error ? "missing" : "loaded", module);
    if (file) {
        if (error) {
            fprintf(file, "\t%d", error);
        } else {
            char digest[65];
            sha256(code, size, digest);
            fprintf(file, "\t%zu\t%s", size, digest);
        }
        end(file);
    }
    kpack_free_code_object(code);
    free(list);
}

static void report_split(const struct module *module) {
    const struct wrapper *wrapper = module->wrapper;
    const char *agent = getenv("STUB_HIP_AGENT");
    struct marker marker = read_marker(wrapper->binary);
    FILE *file = report("split", module);
    if (file) {
        fprintf(file, "\t%u\t%s", (uint32_t)wrapper->co_index, marker.kernel_name);
        for (size_t i = 0; i < marker.path_count; i++)
            fprintf(file, "\t%s", marker.search_paths[i]);
        end(file);
    }
    if (agent)
        load(module, agent);
    for (size_t i = 0; i < marker.path_count; i++)
        free(marker.search_paths[i]);
    free(marker.search_paths);
    free(marker.kernel_name);
}

#endif

/* ---- the functions that clang's start-up code calls ---- */

/* The binary of the wrapper and of what it points to. Both can be in memory that belongs to none. */
static void locate(struct module *module) {
    const struct wrapper *wrapper = module->wrapper;
    Dl_info self = {0}, pointed = {0};
    int found = dladdr(wrapper, &self), content = dladdr(wrapper->binary, &pointed);
    if (found != content || pointed.dli_fbase != self.dli_fbase)
        die("%s: the wrapper at %p points to %p, outside its binary",
            found ? self.dli_fname : "memory", (const void *)wrapper, wrapper->binary);
    if (!found && wrapper->magic != HIPF)
        die("the wrapper at %p is in no binary", (const void *)wrapper);
    /* The search starts beside the binary with the marker, which may not be that of the wrapper. */
    module->binary = found ? realpath(pointed.dli_fname, NULL) : strdup("memory");
    if (!module->binary)
        die("no file %s", pointed.dli_fname);
    module->offset = found ? (uintptr_t)wrapper - (uintptr_t)self.dli_fbase : 0;
}

EXPORT void **__hipRegisterFatBinary(const void *data) {
    const struct wrapper *wrapper = data;
    if (wrapper->version != 1)
        die("wrapper version %u, expected 1", wrapper->version);
#ifdef WITHOUT_MARKERS
    if (wrapper->magic != HIPF)
        return NULL;
#endif
    struct module *module = allocate(sizeof *module);
    module->wrapper = wrapper;
    locate(module);
    module->next = modules;
    modules = module;
    if (wrapper->magic == HIPF)
        report_fat(module);
#ifdef WITHOUT_MARKERS
    if (!memcmp(wrapper->binary, "__CLANG", 7))
        report_entries(module);
#else
    else if (wrapper->magic == HIPK)
        report_split(module);
    else
        die("%s: wrapper magic %#x, expected HIPF or HIPK", module->binary, wrapper->magic);
#endif
    return (void **)module;
}

EXPORT void __hipUnregisterFatBinary(void **handle) {
#ifdef WITHOUT_MARKERS
    if (!handle)
        return;
#endif
    struct module **link = &modules;
    while (*link && *link != (struct module *)handle)
        link = &(*link)->next;
    if (!*link)
        die("a module is unregistered that was not registered");
    /* The wrapper lives until now. */
    if ((*link)->wrapper->magic == HIPF)
        bundle_size((*link)->wrapper->binary);
    *link = (*link)->next;
    struct function **function = &functions;
    while (*function) {
        struct function *this = *function;
        if (this->module == (struct module *)handle) {
            *function = this->next;
            free(this);
        } else {
            function = &this->next;
        }
    }
    free(((struct module *)handle)->binary);
    free(handle);
}

EXPORT void __hipRegisterFunction(void **handle, const void *host_function, char *device_function,
                                  const char *device_name, unsigned thread_limit, void *tid,
                                  void *bid, void *block, void *grid, int *warp_size) {
    (void)device_function, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid,
        (void)warp_size;
#ifdef WITHOUT_MARKERS
    if (!handle)
        return;
#endif
    struct function *function = allocate(sizeof *function);
    function->host = host_function;
    function->module = (struct module *)handle;
    function->device_name = device_name;
    function->next = functions;
    functions = function;
    FILE *file = report("function", function->module);
    if (file) {
        fprintf(file, "\t%s", device_name);
        end(file);
    }
}

EXPORT void __hipRegisterVar(void **handle, void *variable, char *host_name, char *device_name,
                             int external, size_t size, int constant, int global) {
    (void)handle, (void)variable, (void)host_name, (void)device_name, (void)external, (void)size,
        (void)constant, (void)global;
}

EXPORT void __hipRegisterManagedVar(void *handle, void **pointer, void *initial, const char *name,
                                    size_t size, unsigned alignment) {
    (void)handle, (void)name, (void)alignment;
    *pointer = allocate(size);
    memcpy(*pointer, initial, size);
}

static _Thread_local struct {
    struct dim3 grid, block;
    size_t shared;
    void *stream;
} configuration;

EXPORT int __hipPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared,
                                      void *stream) {
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared = shared;
    configuration.stream = stream;
    return 0;
}

EXPORT int __hipPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared,
                                     void **stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *stream = configuration.stream;
    return 0;
}

EXPORT int hipLaunchKernel(const void *host_function, struct dim3 grid, struct dim3 block,
                           void **arguments, size_t shared, void *stream) {
    (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    for (struct function *function = functions; function; function = function->next) {
        if (function->host != host_function)
            continue;
        FILE *file = report("launch", function->module);
        if (file) {
            fprintf(file, "\t%s", function->device_name);
            end(file);
        }
        return 0;
    }
    die("a kernel is launched that was not registered");
}

/* The memory of the GPU is that of the process. */
EXPORT int hipMalloc(void **memory, size_t size) {
    *memory = malloc(size);
    return *memory ? 0 : 2;
}

EXPORT int hipMemcpy(void *to, const void *from, size_t size, int kind) {
    (void)kind;
    memcpy(to, from, size);
    return 0;
}

EXPORT int hipFree(void *memory) {
    free(memory);
    return 0;
}

/* A launch that fails ends the process. */
EXPORT int hipGetLastError(void) { return 0; }

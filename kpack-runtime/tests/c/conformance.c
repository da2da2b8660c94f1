/* Calls every function of the C interface, with every null argument, until each has returned each of its
 * errors. The argument is the directory of the files that the test made. Prints the number of checks.
 * With `overflow` as its second argument, it reads out of bounds on purpose, so that the test can see
 * that AddressSanitizer notices.
 */
#include "system.h"

#include <rocm_kpack/kpack.h>
#include <stdio.h>

static int checks, seen[15];

#define CHECK(condition) \
    do { \
        checks++; \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

#define RETURNS(expected, call) \
    do { \
        kpack_error_t returned = (call); \
        checks++; \
        if (returned != (expected)) { \
            fprintf(stderr, "%s:%d: %s returned %d, expected %s (%d)\n", __FILE__, __LINE__, #call, \
                    (int)returned, #expected, (int)(expected)); \
            exit(1); \
        } \
        seen[returned] = 1; \
    } while (0)

static const char *directory;

static const char *in(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

/* What the headers say of the format is how archives begin. */
static void constants(void) {
    unsigned char start[8] = {0};
    FILE *file = fopen(in("good.kpack"), "rb");
    CHECK(file && fread(start, 1, sizeof start, file) == sizeof start);
    fclose(file);
    CHECK(KPACK_MAGIC_SIZE == 4 && sizeof KPACK_MAGIC == KPACK_MAGIC_SIZE + 1);
    CHECK(!memcmp(start, KPACK_MAGIC, KPACK_MAGIC_SIZE));
    CHECK(start[4] == KPACK_CURRENT_VERSION);
    kpack_compression_scheme_t scheme = KPACK_COMPRESSION_NOOP;
    CHECK(scheme == 0);
    scheme = KPACK_COMPRESSION_ZSTD_PER_KERNEL;
    CHECK(scheme == 1);
}

/* The macro stands where functions of a program with a C interface are declared, too. */
KPACK_API int exported(void);
int exported(void) {
    return 7;
}

static void opening(void) {
    kpack_archive_t archive = (kpack_archive_t)&checks;
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_open(NULL, &archive));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_open(in("good.kpack"), NULL));
    RETURNS(KPACK_ERROR_FILE_NOT_FOUND, kpack_open(in("missing.kpack"), &archive));
    RETURNS(KPACK_ERROR_IO_ERROR, kpack_open(in("empty.kpack"), &archive));
    RETURNS(KPACK_ERROR_IO_ERROR, kpack_open(directory, &archive));
    RETURNS(KPACK_ERROR_INVALID_FORMAT, kpack_open(in("no_archive.kpack"), &archive));
    RETURNS(KPACK_ERROR_UNSUPPORTED_VERSION, kpack_open(in("version_2.kpack"), &archive));
    RETURNS(KPACK_ERROR_MSGPACK_PARSE_FAILED, kpack_open(in("no_toc.kpack"), &archive));
    /* Errors leave the output unchanged. */
    CHECK(archive == (kpack_archive_t)&checks);
    RETURNS(KPACK_SUCCESS, kpack_open(in("good.kpack"), &archive));
    kpack_close(archive);
    kpack_close(NULL);
}

static void names(void) {
    kpack_archive_t archive;
    size_t count = 77;
    const char *name = NULL;
    RETURNS(KPACK_SUCCESS, kpack_open(in("good.kpack"), &archive));

    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_architecture_count(NULL, &count));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_architecture_count(archive, NULL));
    CHECK(count == 77);
    RETURNS(KPACK_SUCCESS, kpack_get_architecture_count(archive, &count));
    CHECK(count == 1);
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_architecture(NULL, 0, &name));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_architecture(archive, 0, NULL));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_architecture(archive, 1, &name));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_architecture(archive, (size_t)-1, &name));
    CHECK(!name);
    RETURNS(KPACK_SUCCESS, kpack_get_architecture(archive, 0, &name));
    CHECK(!strcmp(name, "gfx1100"));

    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_binary_count(NULL, &count));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_binary_count(archive, NULL));
    RETURNS(KPACK_SUCCESS, kpack_get_binary_count(archive, &count));
    CHECK(count == 2);
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_binary(NULL, 0, &name));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_binary(archive, 0, NULL));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_binary(archive, 2, &name));
    RETURNS(KPACK_SUCCESS, kpack_get_binary(archive, 1, &name));
    CHECK(!strcmp(name, "lib/libvec.so#1"));
    RETURNS(KPACK_SUCCESS, kpack_get_binary(archive, 0, &name));
    CHECK(!strcmp(name, "lib/libvec.so#0"));
    kpack_close(archive);
}

static void kernels(void) {
    static const char name[] = "lib/libvec.so#1", target[] = "gfx1100";
    kpack_archive_t archive;
    void *data = &checks;
    size_t size = 77;
    RETURNS(KPACK_SUCCESS, kpack_open(in("good.kpack"), &archive));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_kernel(NULL, name, target, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_kernel(archive, NULL, target, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_kernel(archive, name, NULL, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_kernel(archive, name, target, NULL, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_get_kernel(archive, name, target, &data, NULL));
    RETURNS(KPACK_ERROR_KERNEL_NOT_FOUND, kpack_get_kernel(archive, "x", target, &data, &size));
    RETURNS(KPACK_ERROR_KERNEL_NOT_FOUND, kpack_get_kernel(archive, name, "gfx942", &data, &size));
    RETURNS(KPACK_ERROR_KERNEL_NOT_FOUND, kpack_get_kernel(archive, "\xff", target, &data, &size));
    CHECK(data == &checks && size == 77);
    RETURNS(KPACK_SUCCESS, kpack_get_kernel(archive, name, target, &data, &size));
    /* Loaded code outlives the archive. */
    kpack_close(archive);
    CHECK(size == 100000);
    for (size_t i = 0; i < size; i++)
        if (((unsigned char *)data)[i] != i % 251)
            CHECK(!"the code object's bytes");
    kpack_free_kernel(data);
    kpack_free_kernel(NULL);

    RETURNS(KPACK_SUCCESS, kpack_open(in("not_compressed.kpack"), &archive));
    RETURNS(KPACK_SUCCESS, kpack_get_kernel(archive, name, target, &data, &size));
    CHECK(size == 5 && !memcmp(data, "plain", 5));
    kpack_free_kernel(data);
    RETURNS(KPACK_SUCCESS, kpack_get_kernel(archive, "lib/libvec.so#2", target, &data, &size));
    CHECK(size == 0 && data);
    kpack_free_kernel(data);
    kpack_close(archive);

    RETURNS(KPACK_SUCCESS, kpack_open(in("damaged.kpack"), &archive));
    RETURNS(KPACK_ERROR_DECOMPRESSION_FAILED,
            kpack_get_kernel(archive, name, target, &data, &size));
    kpack_close(archive);

    RETURNS(KPACK_SUCCESS, kpack_open(in("shrinking.kpack"), &archive));
    CHECK(!truncate(in("shrinking.kpack"), 70));
    RETURNS(KPACK_ERROR_IO_ERROR, kpack_get_kernel(archive, name, target, &data, &size));
    kpack_close(archive);
}

/* A gibibyte of zeros with too little memory; AddressSanitizer has its own limit. Not on Windows, where wine does
 * not enforce one. */
static void memory(void) {
    kpack_archive_t archive;
    void *data;
    size_t size;
    int sanitized = getenv("ASAN_OPTIONS") != NULL;
    RETURNS(KPACK_SUCCESS, kpack_open(in("gibibyte.kpack"), &archive));
    if (sanitized || limit_memory(512 << 20))
        RETURNS(KPACK_ERROR_OUT_OF_MEMORY,
                kpack_get_kernel(archive, "lib/libvec.so#0", "gfx1100", &data, &size));
    else
        seen[KPACK_ERROR_OUT_OF_MEMORY] = 1;
    if (!sanitized)
        limit_memory(0);
    kpack_close(archive);
}

/* Whether a file has these bytes there. */
static int is_at(const char *path, size_t offset, const char *bytes, size_t size) {
    char found[64];
    FILE *file = fopen(path, "rb");
    int is = file && size <= sizeof found && !fseek(file, (long)offset, SEEK_SET) &&
             fread(found, 1, size, file) == size && !memcmp(found, bytes, size);
    if (file)
        fclose(file);
    return is;
}

static void paths(void) {
    static const char here[] = "somewhere in this program";
    char path[4096], expected[4096];
    size_t offset = 77;
    size_t length = own_path(expected, sizeof expected);
    CHECK(length > 0);
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_discover_binary_path(NULL, path, 4096, &offset));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_discover_binary_path(here, NULL, 4096, &offset));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_discover_binary_path(here, path, 0, &offset));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT,
            kpack_discover_binary_path(here, path, length, &offset));
    CHECK(offset == 77);
    RETURNS(KPACK_SUCCESS, kpack_discover_binary_path(here, path, length + 1, &offset));
    CHECK(!strcmp(path, expected));
    CHECK(is_at(path, offset, here, sizeof here));
    RETURNS(KPACK_SUCCESS, kpack_discover_binary_path(here, path, sizeof path, NULL));
    RETURNS(KPACK_ERROR_PATH_DISCOVERY_FAILED,
            kpack_discover_binary_path(&offset, path, sizeof path, NULL));
    RETURNS(KPACK_ERROR_PATH_DISCOVERY_FAILED,
            kpack_discover_binary_path((void *)16, path, sizeof path, NULL));
}

static unsigned char *marker;
static size_t marker_size;

static void read_marker(void) {
    FILE *file = fopen(in("marker"), "rb");
    marker = (unsigned char *)malloc(4096);
    CHECK(file && marker);
    marker_size = fread(marker, 1, 4096, file);
    CHECK(marker_size > 0 && marker_size < 4096);
    fclose(file);
}

static kpack_error_t load(kpack_cache_t cache, const void *metadata, const char *isa) {
    char binary[4096];
    void *data = NULL;
    size_t size = 0;
    snprintf(binary, sizeof binary, "%s/lib/libvec.so", directory);
    kpack_error_t error =
        kpack_load_code_object(cache, metadata, binary, 0, &isa, 1, &data, &size);
    if (error == KPACK_SUCCESS)
        CHECK(size == 4 && !memcmp(data, "code", 4));
    else
        CHECK(!data && !size);
    kpack_free_code_object(data);
    return error;
}

static kpack_error_t load_with(const char *variable, const char *value, const char *isa) {
    kpack_cache_t cache;
    set_variable(variable, value);
    RETURNS(KPACK_SUCCESS, kpack_cache_create(&cache));
    /* It was read once. */
    set_variable(variable, NULL);
    kpack_error_t error = load(cache, marker, isa);
    kpack_cache_destroy(cache);
    return error;
}

static void code_objects(void) {
    const char *isas[] = {"gfx9.4", NULL, "amdgcn-amd-amdhsa--gfx1100"}, *wrong[] = {"not a target"};
    const char *none[] = {NULL, "", "amdgcn-amd-amdhsa--"};
    char binary[4096];
    kpack_cache_t cache;
    void *data = &checks;
    size_t size = 77;
    snprintf(binary, sizeof binary, "%s/lib/libvec.so", directory);
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_cache_create(NULL));
    RETURNS(KPACK_SUCCESS, kpack_cache_create(&cache));
#define LOAD(cache, marker, binary, isas, count, data, size) \
    kpack_load_code_object(cache, marker, binary, 0, isas, count, data, size)
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(NULL, marker, binary, isas, 1, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, NULL, binary, isas, 1, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, marker, NULL, isas, 1, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, marker, binary, NULL, 1, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, marker, binary, isas, 0, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, marker, binary, isas + 1, 1, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, marker, binary, isas, 2, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, marker, binary, wrong, 1, &data, &size));
    for (size_t i = 0; i < 3; i++)
        RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, marker, binary, none + i, 1, &data, &size));
    /* Without an ISA, nothing else is looked at. */
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, "no marker", binary, none, 3, &data, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, load_with("ROCM_KPACK_DISABLE", "1", ""));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, marker, binary, isas, 1, NULL, &size));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, LOAD(cache, marker, binary, isas, 1, &data, NULL));
    CHECK(data == &checks && size == 77);
    /* ISAs that are not target IDs are skipped. */
    RETURNS(KPACK_SUCCESS, LOAD(cache, marker, binary, isas, 3, &data, &size));
    kpack_free_code_object(data);

    RETURNS(KPACK_SUCCESS, load(cache, marker, "gfx1100"));
    RETURNS(KPACK_SUCCESS, load(cache, marker, "gfx1100:sramecc+:xnack-"));
    RETURNS(KPACK_ERROR_ARCHIVE_NOT_FOUND, load(cache, marker, "gfx1030"));
    /* Archives for other targets, and for one without this kernel, under their names. */
    RETURNS(KPACK_ERROR_ARCH_NOT_FOUND, load(cache, marker, "gfx1101"));
    RETURNS(KPACK_ERROR_KERNEL_NOT_FOUND, load(cache, marker, "gfx1102"));
    RETURNS(KPACK_ERROR_DECOMPRESSION_FAILED, load(cache, marker, "gfx942"));

    /* Bytes that are not a marker, and an address without memory. */
    RETURNS(KPACK_ERROR_INVALID_METADATA, load(cache, "\xc0\xc0\xc0", "gfx1100"));
    RETURNS(KPACK_ERROR_INVALID_METADATA, load(cache, "this is no marker", "gfx1100"));
    RETURNS(KPACK_ERROR_INVALID_METADATA, load(cache, (void *)16, "gfx1100"));
    RETURNS(KPACK_ERROR_INVALID_METADATA, load(cache, (void *)-16, "gfx1100"));

    /* A marker that ends with its page, with nothing mapped after it. */
    size_t page_size;
    char *page = last_page(&page_size);
    CHECK(page);
    char *at_the_end = page + page_size - marker_size;
    memcpy(at_the_end, marker, marker_size);
    RETURNS(KPACK_SUCCESS, load(cache, at_the_end, "gfx1100"));
    memmove(at_the_end + 1, at_the_end, marker_size - 1);
    RETURNS(KPACK_ERROR_INVALID_METADATA, load(cache, at_the_end + 1, "gfx1100"));
    free_page(page, page_size);

    kpack_cache_destroy(cache);
    kpack_cache_destroy(NULL);

    RETURNS(KPACK_ERROR_NOT_IMPLEMENTED, load_with("ROCM_KPACK_DISABLE", "1", "gfx1100"));
    RETURNS(KPACK_SUCCESS, load_with("ROCM_KPACK_DISABLE", "0", "gfx1100"));
    RETURNS(KPACK_SUCCESS, load_with("ROCM_KPACK_DISABLE", "", "gfx1100"));
    RETURNS(KPACK_ERROR_ARCHIVE_NOT_FOUND, load_with("ROCM_KPACK_PATH", "/none", "gfx1100"));
    RETURNS(KPACK_SUCCESS, load_with("ROCM_KPACK_PATH_PREFIX", "/none", "gfx1100"));
    RETURNS(KPACK_ERROR_ARCHIVE_NOT_FOUND, load_with("ROCM_KPACK_DEBUG", "1", "gfx1030"));
}

/* A library of a store, linked into an environment that has its archives. */
static void links(void) {
    const char *isa = "gfx1100";
    char path[4096];
    kpack_cache_t cache;
    void *data, *library = open_library(in("environment/lib/libvec.so"));
    size_t size;
    CHECK(library);
    const void *metadata = find_symbol(library, "vec_marker");
    CHECK(metadata);
    RETURNS(KPACK_SUCCESS, kpack_discover_binary_path(metadata, path, sizeof path, NULL));
#ifdef _WIN32
    /* It knows a library by the path by which it was loaded. */
    CHECK(strstr(path, "environment"));
#else
    CHECK(strstr(path, "/store/lib/libvec.so"));
#endif
    RETURNS(KPACK_SUCCESS, kpack_cache_create(&cache));
    RETURNS(KPACK_SUCCESS,
            kpack_load_code_object(cache, metadata, path, 0, &isa, 1, &data, &size));
    CHECK(size == 4 && !memcmp(data, "code", 4));
    kpack_free_code_object(data);
    kpack_cache_destroy(cache);
    CHECK(close_library(library));
}

static char listed[64];

static bool list_all(const char *arch, void *user_data) {
    CHECK(user_data == listed);
    strcat(strcat(listed, arch), " ");
    return true;
}

static bool list_one(const char *arch, void *user_data) {
    list_all(arch, user_data);
    return false;
}

static void architectures(void) {
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT, kpack_enumerate_architectures(NULL, list_all, listed));
    RETURNS(KPACK_ERROR_INVALID_ARGUMENT,
            kpack_enumerate_architectures(in("two.kpack"), NULL, listed));
    RETURNS(KPACK_ERROR_FILE_NOT_FOUND,
            kpack_enumerate_architectures(in("missing.kpack"), list_all, listed));
    RETURNS(KPACK_ERROR_IO_ERROR,
            kpack_enumerate_architectures(in("empty.kpack"), list_all, listed));
    CHECK(!*listed);
    RETURNS(KPACK_SUCCESS, kpack_enumerate_architectures(in("two.kpack"), list_all, listed));
    CHECK(!strcmp(listed, "gfx1100 gfx1101 "));
    *listed = 0;
    RETURNS(KPACK_SUCCESS, kpack_enumerate_architectures(in("two.kpack"), list_one, listed));
    CHECK(!strcmp(listed, "gfx1100 "));
}

struct work {
    kpack_archive_t archive;
    kpack_cache_t cache;
};

static void *in_a_thread(void *argument) {
    struct work *work = (struct work *)argument;
    for (int i = 0; i < 50; i++) {
        void *data;
        size_t size;
        if (kpack_get_kernel(work->archive, "lib/libvec.so#1", "gfx1100", &data, &size) ||
            size != 100000 || ((unsigned char *)data)[size - 1] != (size - 1) % 251)
            return (void *)"kpack_get_kernel";
        kpack_free_kernel(data);
        char binary[4096];
        const char *isa = "gfx1100";
        snprintf(binary, sizeof binary, "%s/lib/libvec.so", directory);
        if (kpack_load_code_object(work->cache, marker, binary, 0, &isa, 1, &data, &size) ||
            size != 4)
            return (void *)"kpack_load_code_object";
        kpack_free_code_object(data);
    }
    return NULL;
}

static void threads(void) {
    struct work work;
    pthread_t thread[8];
    RETURNS(KPACK_SUCCESS, kpack_open(in("good.kpack"), &work.archive));
    RETURNS(KPACK_SUCCESS, kpack_cache_create(&work.cache));
    for (int i = 0; i < 8; i++)
        CHECK(!pthread_create(&thread[i], NULL, in_a_thread, &work));
    for (int i = 0; i < 8; i++) {
        void *failed;
        CHECK(!pthread_join(thread[i], &failed));
        CHECK(!failed);
    }
    kpack_cache_destroy(work.cache);
    kpack_close(work.archive);
}

/* Reads past the end of a code object. */
static void overflow(void) {
    kpack_archive_t archive;
    void *data;
    size_t size;
    RETURNS(KPACK_SUCCESS, kpack_open(in("good.kpack"), &archive));
    RETURNS(KPACK_SUCCESS, kpack_get_kernel(archive, "lib/libvec.so#1", "gfx1100", &data, &size));
    printf("%d\n", ((volatile unsigned char *)data)[size]);
    exit(0);
}

int main(int count, char **arguments) {
    if (count < 2)
        return 2;
    directory = arguments[1];
    if (count > 2)
        overflow();
    read_marker();
    constants();
    CHECK(exported() == 7);
    opening();
    names();
    kernels();
    memory();
    paths();
    code_objects();
    links();
    architectures();
    threads();
    free(marker);
    for (int code = 0; code <= 14; code++)
        CHECK(seen[code]);
    printf("%d checks\n", checks);
    return 0;
}

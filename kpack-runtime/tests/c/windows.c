/* What the loader does differently on Windows: the forms of paths, lists of them, long ones, and files that are
 * replaced while they are open. The argument is the directory of the files that the test made, with a drive letter
 * and back-slashes. Prints the number of checks.
 */
#include "system.h"

#include <rocm_kpack/kpack.h>
#include <stdio.h>

static int checks;

#define CHECK(condition) \
    do { \
        checks++; \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static const char *directory;

static const char *in(const char *before, const char *after) {
    static char path[2][4096];
    static int next;
    next = !next;
    snprintf(path[next], sizeof path[next], "%s%s%s", before, directory, after);
    return path[next];
}

static const char *with_slashes(const char *path) {
    static char changed[4096];
    snprintf(changed, sizeof changed, "%s", path);
    for (char *at = changed; *at; at++)
        if (*at == '\\')
            *at = '/';
    return changed;
}

static int opens(const char *path) {
    kpack_archive_t archive;
    kpack_error_t error = kpack_open(path, &archive);
    if (!error)
        kpack_close(archive);
    else
        CHECK(error == KPACK_ERROR_FILE_NOT_FOUND);
    return !error;
}

/* Paths of archives. The process has code page 1252. */
static void paths(void) {
    CHECK(GetACP() == 1252);
    CHECK(opens(in("", "\\lib\\vec.kpack")));
    CHECK(opens(with_slashes(in("", "\\lib\\vec.kpack"))));
    CHECK(opens(in("\\\\?\\", "\\lib\\vec.kpack")));
    CHECK(opens(in("", "\\lib\\..\\lib/vec.kpack")));
    CHECK(opens(in("", "\\LIB\\VEC.KPACK")));
    /* An e with an accent in UTF-8, and in the code page; Chinese only in UTF-8. */
    CHECK(opens(in("", "\\\xc3\xa9.kpack")));
    CHECK(opens(in("", "\\\xe9.kpack")));
    CHECK(opens(in("", "\\\xe4\xb8\xad.kpack")));
    /* In the code page, and valid UTF-8 for a file that is not there: A tilde, copyright. */
    CHECK(opens(in("", "\\\xc3\xa9\xc3\xa9.kpack")));
    CHECK(!opens(in("", "\\none.kpack")));
    CHECK(!opens(in("", "\\none\\vec.kpack")));
    CHECK(!opens(in("", "\\\xe8.kpack")));
    /* A colon leads into a stream of a file. */
    CHECK(!opens(in("", "\\lib\\vec.kpack:none")));
}

static unsigned char marker[4096];

static const char *isa = "gfx1100";

/* Whether the library's code object is found, from a place and with a variable. */
static kpack_error_t load(const char *binary, const char *variable, const char *value) {
    kpack_cache_t cache;
    void *data = NULL;
    size_t size = 0;
    set_variable(variable, value);
    CHECK(!kpack_cache_create(&cache));
    set_variable(variable, NULL);
    kpack_error_t error = kpack_load_code_object(cache, marker, binary, 0, &isa, 1, &data, &size);
    CHECK(error || (size == 4 && !memcmp(data, "code", 4)));
    kpack_free_code_object(data);
    kpack_cache_destroy(cache);
    return error;
}

static void code_objects(void) {
    char list[8192], none[4096];
    snprintf(none, sizeof none, "%s", in("", "\\none\\vec.dll"));
    CHECK(!load(in("", "\\bin\\vec.dll"), "ROCM_KPACK_PATH", NULL));
    CHECK(!load(with_slashes(in("", "\\bin\\vec.dll")), "ROCM_KPACK_PATH", NULL));
    CHECK(!load(in("\\\\?\\", "\\bin\\vec.dll"), "ROCM_KPACK_PATH", NULL));
    CHECK(!load(in("", "\\\xc3\xa9\\bin\\vec.dll"), "ROCM_KPACK_PATH", NULL));
    CHECK(!load(in("", "\\\xe9\\bin\\vec.dll"), "ROCM_KPACK_PATH", NULL));
    CHECK(load(none, "ROCM_KPACK_PATH", NULL) == KPACK_ERROR_ARCHIVE_NOT_FOUND);
    /* A list has drive letters, and so a semicolon. */
    snprintf(list, sizeof list, "C:\\none.kpack;%s", in("", "\\lib\\vec.kpack"));
    CHECK(!load(none, "ROCM_KPACK_PATH", list));
    CHECK(!load(none, "ROCM_KPACK_PATH_PREFIX", list));
    snprintf(list, sizeof list, ";;%s", in("", "\\lib\\vec_@GFXARCH@.kpack"));
    CHECK(!load(none, "ROCM_KPACK_PATH", list));
    CHECK(load(none, "ROCM_KPACK_PATH", "C:\\none.kpack") == KPACK_ERROR_ARCHIVE_NOT_FOUND);
    /* Its archive has a name without a colon. */
    isa = "gfx90a:sramecc+:xnack-";
    CHECK(!load(in("", "\\bin\\vec.dll"), "ROCM_KPACK_PATH", NULL));
    isa = "gfx1100";
}

/* A path longer than MAX_PATH, to a place whose path is not: wine does not tell the identity of others. */
static void long_path(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s", directory);
    while (strlen(path) <= MAX_PATH)
        strcat(path, "\\lib\\..");
    strcat(path, "\\bin\\vec.dll");
    CHECK(!load(path, "ROCM_KPACK_PATH", NULL));
}

/* The paths that Windows and this loader say for the same library. */
static void discovery(void) {
    char found[4096], expected[4096];
    size_t offset;
    HMODULE loader = GetModuleHandleA("rocm_kpack.dll");
    CHECK(loader && GetModuleFileNameA(loader, expected, sizeof expected));
    CHECK(!kpack_discover_binary_path((void *)(size_t)&kpack_open, found, sizeof found, NULL));
    /* This program calls it through its own table. */
    CHECK(GetModuleFileNameA(NULL, expected, sizeof expected) && !strcmp(found, expected));
    void *code = (void *)(size_t)GetProcAddress(loader, "kpack_open");
    CHECK(GetModuleFileNameA(loader, expected, sizeof expected));
    CHECK(!kpack_discover_binary_path(code, found, sizeof found, &offset));
    CHECK(!strcmp(found, expected));
    /* In the directory's name is a character of the code page. */
    CHECK(strchr(found, '\xe9'));
    FILE *file = fopen(found, "rb");
    char bytes[16];
    CHECK(file && !fseek(file, (long)offset, SEEK_SET) && fread(bytes, 16, 1, file) == 1);
    CHECK(!memcmp(bytes, code, 16));
    fclose(file);
}

/* An archive is moved away and removed while it is open. */
static void replaced(void) {
    kpack_archive_t archive;
    void *data;
    size_t size;
    char old[4096], new[4096];
    snprintf(old, sizeof old, "%s", in("", "\\old.kpack"));
    snprintf(new, sizeof new, "%s", in("", "\\new.kpack"));
    CHECK(!kpack_open(old, &archive));
    CHECK(MoveFileA(old, in("", "\\gone.kpack")) && MoveFileA(new, old));
    CHECK(!kpack_get_kernel(archive, "lib/libvec.so#0", "gfx1100", &data, &size));
    CHECK(size == 4 && !memcmp(data, "code", 4));
    kpack_free_kernel(data);
    kpack_close(archive);
    CHECK(!kpack_open(old, &archive));
    CHECK(DeleteFileA(old));
    CHECK(!kpack_get_kernel(archive, "lib/libvec.so#0", "gfx1100", &data, &size));
    CHECK(size == 5 && !memcmp(data, "newer", 5));
    kpack_free_kernel(data);
    kpack_close(archive);
}

int main(int count, char **arguments) {
    if (count < 2)
        return 2;
    directory = arguments[1];
    FILE *file = fopen(in("", "\\marker"), "rb");
    CHECK(file && fread(marker, 1, sizeof marker, file) > 0);
    fclose(file);
    paths();
    code_objects();
    long_path();
    discovery();
    replaced();
    printf("%d checks\n", checks);
    return 0;
}

/* Loads every kernel of an archive in eight threads at once, from one open archive and through one
 * cache, under ThreadSanitizer. With `race` as its second argument it has a data race on purpose.
 */
#include "system.h"

#include <rocm_kpack/kpack.h>
#include <stdio.h>

enum { THREADS = 8, ROUNDS = 4 };

static kpack_archive_t archive;
static kpack_cache_t cache;
static size_t count;
static const char *target;
static size_t total;

static void check(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

static char *add_text(char *at, const char *text, size_t length) {
    *at++ = (char)0xd9; /* MessagePack: str 8 */
    *at++ = (char)length;
    memcpy(at, text, length);
    return at + length;
}

/* The marker of a binary; ROCM_KPACK_PATH says where its archive is. */
static void make_marker(char *at, const char *name, size_t length) {
    *at++ = (char)0x82;
    at = add_text(at, "kernel_name", 11);
    at = add_text(at, name, length);
    at = add_text(at, "kpack_search_paths", 18);
    *at++ = (char)0x91;
    add_text(at, "-", 1);
}

static void *load_all(void *argument) {
    size_t first = *(size_t *)argument, sum = 0;
    for (size_t i = 0; i < ROUNDS * count; i++) {
        const char *name, *index;
        void *data[2];
        size_t size[2];
        char marker[512];
        check(!kpack_get_binary(archive, (first + i) % count, &name), "kpack_get_binary");
        check(!kpack_get_kernel(archive, name, target, &data[0], &size[0]), "kpack_get_kernel");
        index = strrchr(name, '#');
        make_marker(marker, name, (size_t)(index - name));
        check(!kpack_load_code_object(cache, marker, "/none/lib/libvec.so",
                                      (unsigned)atoi(index + 1), &target, 1, &data[1], &size[1]),
              "kpack_load_code_object");
        check(size[0] == size[1] && !memcmp(data[0], data[1], size[0]), "the same bytes");
        sum += size[0];
        kpack_free_kernel(data[0]);
        kpack_free_code_object(data[1]);
    }
    *(size_t *)argument = sum;
    return NULL;
}

static void *race(void *argument) {
    total += *(size_t *)argument;
    return NULL;
}

int main(int arguments, char **argument) {
    pthread_t thread[THREADS];
    size_t work[THREADS];
    void *(*run)(void *) = arguments > 2 ? race : load_all;
    check(arguments > 1, "an archive as argument");
    set_variable("ROCM_KPACK_PATH", argument[1]);
    check(!kpack_open(argument[1], &archive), "kpack_open");
    check(!kpack_cache_create(&cache), "kpack_cache_create");
    check(!kpack_get_binary_count(archive, &count) && count > 0, "kpack_get_binary_count");
    check(!kpack_get_architecture(archive, 0, &target), "kpack_get_architecture");
    for (size_t i = 0; i < THREADS; i++) {
        work[i] = i * count / THREADS;
        check(!pthread_create(&thread[i], NULL, run, &work[i]), "pthread_create");
    }
    for (size_t i = 0; i < THREADS; i++) {
        check(!pthread_join(thread[i], NULL), "pthread_join");
        total += work[i];
    }
    kpack_cache_destroy(cache);
    kpack_close(archive);
    printf("%zu bytes\n", total);
    return 0;
}

/* What these programs need of the system, on Linux and on Windows.
 */
#ifndef SYSTEM_H
#define SYSTEM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef _WIN32

#include <windows.h>

/* Null removes the variable. */
static inline void set_variable(const char *name, const char *value) {
    _putenv_s(name, value ? value : "");
}

/* The path of this program, and its length; 0 if it is not known. */
static inline size_t own_path(char *path, size_t size) {
    DWORD length = GetModuleFileNameA(NULL, path, (DWORD)size);
    return length < size ? length : 0;
}

/* Whether the memory of this process is limited now. Lifts the limit if `bytes` is 0. */
static inline int limit_memory(size_t bytes) {
    (void)bytes;
    return 0;
}

/* A page of memory with nothing after it, and its size. */
static inline char *last_page(size_t *size) {
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    *size = system.dwPageSize;
    char *pages = (char *)VirtualAlloc(NULL, 2 * *size, MEM_RESERVE, PAGE_READWRITE);
    return pages ? (char *)VirtualAlloc(pages, *size, MEM_COMMIT, PAGE_READWRITE) : NULL;
}

static inline void free_page(char *page, size_t size) {
    (void)size;
    VirtualFree(page, 0, MEM_RELEASE);
}

static inline void *open_library(const char *path) {
    return (void *)LoadLibraryA(path);
}

static inline const void *find_symbol(void *library, const char *name) {
    return (const void *)(size_t)GetProcAddress((HMODULE)library, name);
}

static inline int close_library(void *library) {
    return FreeLibrary((HMODULE)library) != 0;
}

#else

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>

static inline void set_variable(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static inline size_t own_path(char *path, size_t size) {
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return (size_t)length;
}

static inline int limit_memory(size_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit))
        return 0;
    limit.rlim_cur = bytes ? bytes : limit.rlim_max;
    return !setrlimit(RLIMIT_AS, &limit);
}

static inline char *last_page(size_t *size) {
    *size = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = (char *)mmap(NULL, 2 * *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                               -1, 0);
    return pages != MAP_FAILED && !munmap(pages + *size, *size) ? pages : NULL;
}

static inline void free_page(char *page, size_t size) {
    munmap(page, size);
}

static inline void *open_library(const char *path) {
    return dlopen(path, RTLD_NOW);
}

static inline const void *find_symbol(void *library, const char *name) {
    return dlsym(library, name);
}

static inline int close_library(void *library) {
    return !dlclose(library);
}

#endif

#endif

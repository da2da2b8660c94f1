/* Does what its arguments say, in order, with a library that is linked with the HIP runtime:
 *
 *   open | local | deepbind   dlopen it: RTLD_GLOBAL, RTLD_LOCAL, RTLD_LOCAL | RTLD_DEEPBIND
 *   close                     dlclose it
 *   init                      start the HIP runtime. With HIP_ENABLE_DEFERRED_LOADING=0, it loads all
 *                             device code of the libraries that are open
 *   devices                   fail if the runtime finds no GPU
 *   fork                      go on in a child, and end as the child does
 *   secure                    fail if the program does not run with raised privileges
 *   query NAME                ask for the attributes of a kernel of the library, by its symbol, on each GPU
 *   launch NAME               launch it on each GPU; nobody waits for it
 *   module                    load the device code of the library's first wrapper with hipModuleLoadData, and
 *                             with hipModuleLoadFatBinary if the runtime has that
 *   file NAME                 load a file of code objects with hipModuleLoad
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void *library;

static void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    _exit(1);
}

/* Lazily: the HIP runtime needs more of the HSA runtime than the stub has. */
static void load(const char *file, int flags) {
    library = dlopen(file, RTLD_LAZY | flags);
    if (!library)
        fail("%s", dlerror());
}

/* A function of the HIP runtime. */
static void *hip(const char *name) {
    void *function = dlsym(library, name);
    if (!function)
        fail("%s", dlerror());
    return function;
}

static void check(const char *what, int error) {
    if (error)
        fail("%s gives %d", what, error);
}

static int devices(void) {
    int count;
    check("hipGetDeviceCount", ((int (*)(int *))hip("hipGetDeviceCount"))(&count));
    return count;
}

static void use(const char *kernel, int launches) {
    char attributes[256];
    struct { unsigned x, y, z; } one = {1, 1, 1};
    long values[8] = {0};
    void *arguments[8], *symbol = hip(kernel);
    for (int at = 0; at < 8; at++)
        arguments[at] = &values[at];
    for (int device = 0, count = devices(); device < count; device++) {
        check("hipSetDevice", ((int (*)(int))hip("hipSetDevice"))(device));
        if (launches) {
            int (*launch)(void *, __typeof__(one), __typeof__(one), void **, size_t, void *) =
                hip("hipLaunchKernel");
            check("hipLaunchKernel", launch(symbol, one, one, arguments, 0, NULL));
        } else {
            int (*query)(void *, void *) = hip("hipFuncGetAttributes");
            check("hipFuncGetAttributes", query(attributes, symbol));
        }
    }
}

/* What the first wrapper of the library points to. */
static const void *device_code(const char *path) {
    struct link_map *map;
    struct stat status;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) || dlinfo(library, RTLD_DI_LINKMAP, &map))
        fail("%s cannot be read", path);
    const char *image = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (image == MAP_FAILED)
        fail("%s cannot be mapped", path);
    const Elf64_Ehdr *header = (const void *)image;
    const Elf64_Shdr *sections = (const void *)(image + header->e_shoff);
    const char *names = image + sections[header->e_shstrndx].sh_offset;
    for (int at = 0; at < header->e_shnum; at++)
        if (!strcmp(names + sections[at].sh_name, ".hipFatBinSegment"))
            return *(const void **)(map->l_addr + sections[at].sh_addr + 8);
    fail("%s has no wrapper", path);
    return NULL;
}

static void load_module(const char *path) {
    const char *names[] = {"hipModuleLoadData", "hipModuleLoadFatBinary"};
    for (int at = 0; at < 2; at++) {
        void *module;
        int (*function)(void **, const void *) = dlsym(library, names[at]);
        if (function)
            check(names[at], function(&module, device_code(path)));
    }
}

static void in_child(void) {
    int status;
    pid_t child = fork();
    if (child < 0)
        fail("fork fails");
    if (child == 0)
        return;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        kill(getpid(), WTERMSIG(status));
    _exit(WEXITSTATUS(status));
}

int main(int count, char **arguments) {
    const char *file = arguments[1];
    for (int at = 2; at < count; at++) {
        const char *step = arguments[at];
        if (!strcmp(step, "open"))
            load(file, RTLD_GLOBAL);
        else if (!strcmp(step, "local"))
            load(file, RTLD_LOCAL);
        else if (!strcmp(step, "deepbind"))
            load(file, RTLD_LOCAL | RTLD_DEEPBIND);
        else if (!strcmp(step, "close"))
            dlclose(library);
        else if (!strcmp(step, "init"))
            check("hipInit", ((int (*)(unsigned))hip("hipInit"))(0));
        else if (!strcmp(step, "devices"))
            devices();
        else if (!strcmp(step, "fork"))
            in_child();
        else if (!strcmp(step, "module"))
            load_module(file);
        else if (at + 1 < count && !strcmp(step, "file")) {
            void *module;
            int (*function)(void **, const char *) = hip("hipModuleLoad");
            check("hipModuleLoad", function(&module, arguments[++at]));
        } else if (!strcmp(step, "secure")) {
            if (!getauxval(AT_SECURE))
                fail("the program runs without raised privileges");
        } else if (at + 1 < count && (!strcmp(step, "query") || !strcmp(step, "launch")))
            use(arguments[++at], *step == 'l');
        else
            fail("%s is not a step", step);
    }
    /* Skip the destructors: the stub's GPUs cannot be shut down. */
    _exit(0);
}

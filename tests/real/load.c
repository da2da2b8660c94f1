/* Does what its arguments say, in order, with a library that is linked with the HIP runtime:
 *
 *   open | local | deepbind   dlopen it: RTLD_GLOBAL, RTLD_LOCAL, RTLD_LOCAL | RTLD_DEEPBIND
 *   close                     dlclose it
 *   init                      start the HIP runtime. With HIP_ENABLE_DEFERRED_LOADING=0, it loads all
 *                             device code of the libraries that are open
 *   fork                      go on in a child, and end as the child does
 *   secure                    fail if the program does not run with raised privileges
 *   anything else             a kernel of the library, by its symbol: use it on each GPU
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
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

/* Calls a function of the HIP runtime with at most two arguments. */
static void hip(const char *name, void *first, const void *second) {
    int (*function)(void *, const void *) = (int (*)(void *, const void *))dlsym(library, name);
    if (!function)
        fail("%s", dlerror());
    int error = function(first, second);
    if (error)
        fail("%s gives %d", name, error);
}

static void use(const char *kernel) {
    char attributes[256];
    void *symbol = dlsym(library, kernel);
    if (!symbol)
        fail("%s", dlerror());
    int devices;
    hip("hipGetDeviceCount", &devices, NULL);
    for (long device = 0; device < devices; device++) {
        hip("hipSetDevice", (void *)device, NULL);
        hip("hipFuncGetAttributes", attributes, symbol);
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
            hip("hipInit", NULL, NULL);
        else if (!strcmp(step, "fork"))
            in_child();
        else if (!strcmp(step, "secure")) {
            if (!getauxval(AT_SECURE))
                fail("the program runs without raised privileges");
        } else
            use(step);
    }
    /* Skip the destructors: the stub's GPUs cannot be shut down. */
    _exit(0);
}

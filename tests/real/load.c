/* Loads a library, as the start of a program that is linked with it does. With a second argument and
 * HIP_ENABLE_DEFERRED_LOADING=0, the HIP runtime then loads all device code of the library. */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **arguments) {
    /* Lazily: the HIP runtime needs more of the HSA runtime than the stub has. */
    void *library = dlopen(arguments[1], RTLD_LAZY);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (count > 2) {
        int devices = 0;
        int (*initialise)(unsigned) = (int (*)(unsigned))dlsym(library, "hipInit");
        int (*count_devices)(int *) = (int (*)(int *))dlsym(library, "hipGetDeviceCount");
        if (!initialise || !count_devices || initialise(0) || count_devices(&devices)) {
            fprintf(stderr, "the HIP runtime does not start\n");
            return 2;
        }
        printf("%d GPU\n", devices);
    }
    fflush(stdout);
    /* Skip the destructors: the stub's GPU cannot be shut down. */
    _exit(0);
}

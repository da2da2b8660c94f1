/* Opens the libraries that are its arguments, each for itself. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
    for (int at = 1; at < count; at++)
        if (!dlopen(arguments[at], RTLD_NOW | RTLD_LOCAL)) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    return 0;
}

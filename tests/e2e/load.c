/* Loads the libraries that its arguments name, and binds all symbols at once. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **paths) {
    for (int i = 1; i < count; i++) {
        if (!dlopen(paths[i], RTLD_NOW | RTLD_LOCAL)) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        puts("loaded");
    }
    return 0;
}

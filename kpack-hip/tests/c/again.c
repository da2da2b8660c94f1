// Loads and unloads a library a hundred times. No descriptor may stay open.
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>

static int open_files(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

int main(int count, char **arguments) {
    int first = 0;
    for (int round = 0; round < 100; round++) {
        void *library = dlopen(arguments[count - 1], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        dlclose(library);
        if (round == 0)
            first = open_files();
    }
    int last = open_files();
    if (last != first)
        fprintf(stderr, "%d open files after the first round, %d after the last\n", first, last);
    return last != first;
}

/* Opens and closes each library that is an argument, all at once and several times. Fails if one stays
 * loaded. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 20, MOST = 16 };

static void *work(void *file) {
    for (int round = 0; round < ROUNDS; round++) {
        void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        dlclose(library);
    }
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[MOST];
    for (int at = 1; at < count && at < MOST; at++)
        if (pthread_create(&threads[at], NULL, work, arguments[at]))
            return 1;
    for (int at = 1; at < count && at < MOST; at++)
        pthread_join(threads[at], NULL);
    for (int at = 1; at < count; at++)
        if (dlopen(arguments[at], RTLD_NOW | RTLD_NOLOAD)) {
            fprintf(stderr, "%s is still loaded\n", arguments[at]);
            return 1;
        }
    return 0;
}

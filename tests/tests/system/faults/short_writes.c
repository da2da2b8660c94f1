/* Preloaded: every write to a file writes less than it was asked for, at every second call nothing at all. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/uio.h>

static unsigned long calls;

static int interrupted(void) {
    if (__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) % 2 == 0)
        return 0;
    errno = EINTR;
    return 1;
}

static size_t less(size_t count) { return count < 2 ? count : (count + 1) / 2; }

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t count) {
    return interrupted() ? -1 : NEXT(write)(fd, data, less(count));
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t offset) {
    return interrupted() ? -1 : NEXT(pwrite64)(fd, data, less(count), offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return interrupted() ? -1 : NEXT(write)(fd, parts[0].iov_base, less(parts[0].iov_len));
}

ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t count, unsigned flags) {
    return interrupted() ? -1 : NEXT(copy_file_range)(from, in, to, out, less(count), flags);
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t count) {
    return interrupted() ? -1 : NEXT(sendfile64)(to, from, offset, less(count));
}

__attribute__((destructor)) static void report(void) { fprintf(stderr, "%lu short writes\n", calls); }

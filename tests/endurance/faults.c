/* Operations on files below a folder that fail on demand: loaded with LD_PRELOAD, told what to do by faults.py.
 *
 * An operation is counted if it changes something below the folder. The one with the given number fails with the given
 * error, and, if the fault lasts, all that follow. The first half of a write gets through when a disk becomes full.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define LIMIT 1000000
static char folder[4096];
static char kinds[LIMIT + 1];
static long seen, fault_at;
static int is_armed, fault_error, is_lasting;

void faults_arm(const char *where, long at, int error, int lasting) {
    strncpy(folder, where, sizeof folder - 1);
    fault_at = at, fault_error = error, is_lasting = lasting, seen = 0, is_armed = 1;
}

const char *faults_seen(void) {
    is_armed = 0;
    kinds[seen < LIMIT ? seen : LIMIT] = 0;
    return kinds;
}

static int is_below(const char *path) { return strncmp(path, folder, strlen(folder)) == 0; }

static int is_file_below(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_below(path);
}

static int is_path_below(int base, const char *path) {
    char joined[8192] = "";
    if (path == NULL) return 0;
    if (path[0] == '/') return is_below(path);
    if (base == AT_FDCWD) {
        if (getcwd(joined, 4096) == NULL) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", base);
        ssize_t length = readlink(link, joined, 4095);
        if (length <= 0) return 0;
        joined[length] = 0;
    }
    strncat(joined, "/", 2);
    strncat(joined, path, 4000);
    return is_below(joined);
}

/* Whether this operation fails; 2 if it is the first of those that do. */
static int fails(char kind) {
    long number = seen++;
    if (number < LIMIT) kinds[number] = kind;
    if (fault_at < 0 || number < fault_at || (number > fault_at && !is_lasting)) return 0;
    errno = fault_error;
    return number == fault_at ? 2 : 1;
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_IF(kind, inside)                                  \
    do {                                                       \
        if (is_armed && (inside) && fails(kind)) return -1;    \
    } while (0)

ssize_t write(int file, const void *data, size_t size) {
    if (is_armed && is_file_below(file)) {
        int fault = fails('w');
        if (fault == 2 && is_lasting && fault_error == ENOSPC && size > 1) return REAL(write)(file, data, size / 2);
        if (fault) return -1;
    }
    return REAL(write)(file, data, size);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    FAIL_IF('w', is_file_below(file));
    return REAL(pwrite)(file, data, size, at);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    FAIL_IF('w', is_file_below(file));
    return REAL(pwrite64)(file, data, size, at);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    FAIL_IF('w', is_file_below(file));
    return REAL(writev)(file, parts, count);
}

ssize_t sendfile(int to, int from, off_t *at, size_t size) {
    FAIL_IF('w', is_file_below(to));
    ssize_t (*real)(int, int, off_t *, size_t) = dlsym(RTLD_NEXT, "sendfile");
    return real(to, from, at, size);
}

int ftruncate(int file, off_t size) {
    FAIL_IF('t', is_file_below(file));
    return REAL(ftruncate)(file, size);
}

int ftruncate64(int file, off64_t size) {
    FAIL_IF('t', is_file_below(file));
    return REAL(ftruncate64)(file, size);
}

int fsync(int file) {
    FAIL_IF('s', is_file_below(file));
    return REAL(fsync)(file);
}

int rename(const char *from, const char *to) {
    FAIL_IF('r', is_path_below(AT_FDCWD, to));
    return REAL(rename)(from, to);
}

int renameat(int base, const char *from, int other, const char *to) {
    FAIL_IF('r', is_path_below(other, to));
    return REAL(renameat)(base, from, other, to);
}

int link(const char *from, const char *to) {
    FAIL_IF('l', is_path_below(AT_FDCWD, to));
    return REAL(link)(from, to);
}

int linkat(int base, const char *from, int other, const char *to, int flags) {
    FAIL_IF('l', is_path_below(other, to));
    return REAL(linkat)(base, from, other, to, flags);
}

/* A full disk lets files be deleted. */
int unlink(const char *path) {
    if (is_armed && is_path_below(AT_FDCWD, path) && fails('u') && fault_error != ENOSPC) return -1;
    return REAL(unlink)(path);
}

int unlinkat(int base, const char *path, int flags) {
    if (is_armed && is_path_below(base, path) && fails('u') && fault_error != ENOSPC) return -1;
    return REAL(unlinkat)(base, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    FAIL_IF('m', is_path_below(AT_FDCWD, path));
    return REAL(mkdir)(path, mode);
}

int mkdirat(int base, const char *path, mode_t mode) {
    FAIL_IF('m', is_path_below(base, path));
    return REAL(mkdirat)(base, path, mode);
}

#define OPEN(name, base, ...)                                                        \
    mode_t mode = 0;                                                                 \
    if (flags & (O_CREAT | O_TMPFILE)) {                                             \
        va_list more;                                                                \
        va_start(more, flags);                                                       \
        mode = va_arg(more, mode_t);                                                 \
        va_end(more);                                                                \
    }                                                                                \
    if (flags & (O_CREAT | O_WRONLY | O_RDWR)) FAIL_IF('o', is_path_below(base, path)); \
    return REAL(name)(__VA_ARGS__, flags, mode)

int open(const char *path, int flags, ...) { OPEN(open, AT_FDCWD, path); }
int open64(const char *path, int flags, ...) { OPEN(open64, AT_FDCWD, path); }
int openat(int base, const char *path, int flags, ...) { OPEN(openat, base, base, path); }
int openat64(int base, const char *path, int flags, ...) { OPEN(openat64, base, base, path); }

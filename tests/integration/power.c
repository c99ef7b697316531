// A disk that loses what was not flushed. It keeps, beside the watched file, what a power failure
// would leave of it: FILE.disk. A flush that fails drops the pages, which later flushes then skip,
// as Linux does.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static struct { off_t at; size_t size; } dirty[100000];
static int count, disk = -1;
static struct stat watched;
static unsigned long failing;  // bit 0: the next flush

void power_watch(const char *path) {
  char name[4096];
  snprintf(name, sizeof name, "%s.disk", path);
  if (disk >= 0) close(disk);
  stat(path, &watched);
  disk = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
  dirty[0].at = 0, dirty[0].size = watched.st_size, count = 1;
}

void power_fail(unsigned long flushes) { failing = flushes; }

static int is_watched(int fd) {
  struct stat found;
  return disk >= 0 && !fstat(fd, &found) && found.st_ino == watched.st_ino && found.st_dev == watched.st_dev;
}

static ssize_t note(int fd, off_t at, ssize_t size) {
  if (size > 0 && is_watched(fd)) dirty[count].at = at, dirty[count++].size = size;
  return size;
}

static int flush(int fd) {
  if (!is_watched(fd)) return 0;
  int fails = failing & 1;
  failing >>= 1;
  for (int i = 0; i < count && !fails; i++) {
    char *bytes = malloc(dirty[i].size);
    ssize_t size = pread(fd, bytes, dirty[i].size, dirty[i].at);
    if (pwrite(disk, bytes, size, dirty[i].at) != size) abort();
    free(bytes);
  }
  count = 0;
  if (fails) errno = EIO;
  return -fails;
}

#define NEXT(name) __typeof__(name) *next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
int fsync(int fd) { NEXT(fsync); return flush(fd) ? -1 : next(fd); }
int fdatasync(int fd) { NEXT(fdatasync); return flush(fd) ? -1 : next(fd); }
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) { NEXT(pwrite); return note(fd, at, next(fd, b, n, at)); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t at) { NEXT(pwrite64); return note(fd, at, next(fd, b, n, at)); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) { NEXT(pwritev); return note(fd, at, next(fd, v, n, at)); }
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at) { NEXT(pwritev64); return note(fd, at, next(fd, v, n, at)); }
ssize_t write(int fd, const void *b, size_t n) { NEXT(write); off_t at = lseek(fd, 0, SEEK_CUR); return note(fd, at, next(fd, b, n)); }
ssize_t writev(int fd, const struct iovec *v, int n) { NEXT(writev); off_t at = lseek(fd, 0, SEEK_CUR); return note(fd, at, next(fd, v, n)); }

// SPDX-License-Identifier: Apache-2.0
// Preloaded, a disk that refuses or is slow: what lies in a folder "checkpoints" cannot be written
// with the error of BAD_DISK_ERRNO, or only after BAD_DISK_MS for each call. What lies in a folder
// "swap" is what rests on a disk: BAD_SWAP has the effect there that its name says, from transfer
// number BAD_SWAP_AFTER on: an errno of writes, "read" (reads fail with EIO), "torn" (writes
// store half of their bytes and say that they stored all), "slow" (2 ms a transfer), or "reserve"
// (no room is reserved). io_uring refuses transfers with the errno of BAD_RING, from submission
// number BAD_RING_AFTER on.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int lies_there(const char* path) {
  return path != NULL && strstr(path, "/checkpoints") != NULL;
}
static int is_there(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return lies_there(path);
}
static int refused(void) {
  const char* code = getenv("BAD_DISK_ERRNO");
  errno = code == NULL ? 0 : atoi(code);
  return errno;
}
static void wait_a_little(void) {
  const char* ms = getenv("BAD_DISK_MS");
  if (ms != NULL) usleep((useconds_t)atoi(ms) * 1000);
}

int open(const char* path, int flags, ...) {
  static int (*real)(const char*, int, ...);
  if (real == NULL) real = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if ((flags & O_CREAT) != 0 && lies_there(path) && refused() == EROFS) return -1;
  return real(path, flags, mode);
}
int mkdir(const char* path, mode_t mode) {
  static int (*real)(const char*, mode_t);
  if (real == NULL) real = (int (*)(const char*, mode_t))dlsym(RTLD_NEXT, "mkdir");
  if (lies_there(path) && refused() == EROFS) return -1;
  return real(path, mode);
}
int fallocate(int fd, int mode, off_t offset, off_t length) {
  static int (*real)(int, int, off_t, off_t);
  if (real == NULL) real = (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate");
  if (is_there(fd) && refused()) return -1;
  return real(fd, mode, offset, length);
}
ssize_t write(int fd, const void* bytes, size_t count) {
  static ssize_t (*real)(int, const void*, size_t);
  if (real == NULL) real = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  if (is_there(fd)) {
    wait_a_little();
    if (refused()) return -1;
  }
  return real(fd, bytes, count);
}

static int is_swap(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return strstr(path, "/swap/") != NULL;
}
/* Counts a transfer, and returns what goes wrong with it. */
static const char* fault(int fd) {
  static int transfers;
  const char* what = getenv("BAD_SWAP");
  const char* after = getenv("BAD_SWAP_AFTER");
  if (what == NULL || !is_swap(fd)) return "";
  const int number = __atomic_add_fetch(&transfers, 1, __ATOMIC_RELAXED);
  const int first = after == NULL ? 0 : atoi(after);
  if (number < first) return "";
  if (strcmp(what, "slow") == 0) usleep(2000);
  return what;
}

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) {
  static ssize_t (*real)(int, const void*, size_t, off_t);
  if (real == NULL)
    real = (ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
  const char* what = fault(fd);
  if (strcmp(what, "torn") == 0) {
    (void)!real(fd, bytes, count / 2, at);
    return (ssize_t)count;
  }
  if (atoi(what) > 0) {
    errno = atoi(what);
    return -1;
  }
  return real(fd, bytes, count, at);
}
ssize_t pread(int fd, void* bytes, size_t count, off_t at) {
  static ssize_t (*real)(int, void*, size_t, off_t);
  if (real == NULL) real = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread");
  if (strcmp(fault(fd), "read") == 0) {
    errno = EIO;
    return -1;
  }
  return real(fd, bytes, count, at);
}
struct io_uring;
int io_uring_submit_and_wait(struct io_uring* ring, unsigned wanted) {
  static int (*real)(struct io_uring*, unsigned);
  static int submissions;
  if (real == NULL)
    real = (int (*)(struct io_uring*, unsigned))dlsym(RTLD_NEXT, "io_uring_submit_and_wait");
  const char* what = getenv("BAD_RING");
  const char* after = getenv("BAD_RING_AFTER");
  const int number = __atomic_add_fetch(&submissions, 1, __ATOMIC_RELAXED);
  if (what != NULL && number >= (after == NULL ? 0 : atoi(after))) return -atoi(what);
  return real(ring, wanted);
}
int posix_fallocate(int fd, off_t offset, off_t length) {
  static int (*real)(int, off_t, off_t);
  if (real == NULL) real = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate");
  const char* what = getenv("BAD_SWAP");
  if (what != NULL && strcmp(what, "reserve") == 0 && is_swap(fd)) return ENOSPC;
  return real(fd, offset, length);
}

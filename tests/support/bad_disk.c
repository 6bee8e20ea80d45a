// SPDX-License-Identifier: Apache-2.0
// Preloaded, a disk that refuses or is slow: what lies in a folder "checkpoints" cannot be written
// with the error of BAD_DISK_ERRNO, or only after BAD_DISK_MS for each call.
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

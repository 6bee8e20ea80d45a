// SPDX-License-Identifier: Apache-2.0
// Memory files that the ranks of a host share; one of them holds the control page.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tessera/base/control_page.h"

namespace tessera::launch {

/// A file descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// The shared memory of one world: an arena per rank (none for a single rank) and the control page,
/// formatted and mapped. Nothing of it has a name in the file system. Throws Error{Environment};
/// nothing is left behind.
class SharedFiles {
 public:
  SharedFiles(int ranks, std::size_t arena_bytes);
  ~SharedFiles();
  SharedFiles(const SharedFiles&) = delete;
  SharedFiles& operator=(const SharedFiles&) = delete;

  [[nodiscard]] ControlPage& control() const { return *control_; }
  [[nodiscard]] int control_fd() const { return control_fd_.get(); }
  [[nodiscard]] std::vector<int> arenas() const;
  /// Returns the requested size, or less if all arenas together would not fit into the address
  /// space of a rank.
  [[nodiscard]] std::size_t arena_bytes() const { return arena_bytes_; }
  /// After this call the destructor leaves descriptors and mapping to the process.
  void keep() { kept_ = true; }

 private:
  std::vector<Fd> arenas_;
  std::size_t arena_bytes_ = 0;
  Fd control_fd_;
  ControlPage* control_ = nullptr;
  int ranks_;
  bool kept_ = false;
};

/// Raises the soft limit so that this process can open `count` more descriptors. Throws
/// Error{Environment} with both numbers if the hard limit does not allow it.
void allow_descriptors(std::size_t count);

}  // namespace tessera::launch

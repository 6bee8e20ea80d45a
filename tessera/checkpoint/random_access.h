// SPDX-License-Identifier: Apache-2.0
// A file that is read at arbitrary positions. Unlike a mapping, its pages do not stay in the
// process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace tessera::checkpoint {

/// Throws Error{Io} with path and reason. Threads: const methods from any thread.
class RandomAccess {
 public:
  explicit RandomAccess(const std::filesystem::path& path);
  ~RandomAccess();
  RandomAccess(const RandomAccess&) = delete;
  RandomAccess& operator=(const RandomAccess&) = delete;

  /// Fills `out` with the bytes from `at` on. Throws Error{Format} if the file ends before, or the
  /// disk cannot read them.
  void read(std::uint64_t at, std::span<std::byte> out) const;
  /// Starts reading bytes that will be needed; costs nothing if they are in memory.
  void prefetch(std::uint64_t at, std::uint64_t bytes) const noexcept;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
// A file that is read where it is asked for. Unlike a mapping, nothing of it stays in the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace tessera::checkpoint {

/// Error{Io} with path and reason. Threads: const methods from any thread.
class RandomAccess {
 public:
  explicit RandomAccess(const std::filesystem::path& path);
  ~RandomAccess();
  RandomAccess(const RandomAccess&) = delete;
  RandomAccess& operator=(const RandomAccess&) = delete;

  /// Fills `out` with the bytes from `at` on. Error{Format} where the file ends before, or
  /// the disk has lost them.
  void read(std::uint64_t at, std::span<std::byte> out) const;
  /// Lets the disk begin with bytes that will be read; costs nothing if they are in memory.
  void expect(std::uint64_t at, std::uint64_t bytes) const noexcept;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace tessera::checkpoint

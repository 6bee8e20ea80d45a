// SPDX-License-Identifier: Apache-2.0
// Memory that the process may access only while it is opened.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace tessera::test {

/// Pages that raise SIGSEGV outside of a GuardedMemory::Open. Threads: any.
class GuardedMemory {
 public:
  /// Returns nullptr for 0 bytes.
  void* allocate(std::size_t bytes);
  void release(void* at);
  /// The bytes that were asked for, at an address that allocate() returned.
  [[nodiscard]] std::size_t bytes_at(const void* at);

  enum class Use { Read, Write };
  /// While it exists, the block that contains `at` may be read, or also written; nullptr opens
  /// nothing.
  class Open {
   public:
    Open(GuardedMemory& memory, const void* at, Use use = Use::Write);
    ~Open();
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    GuardedMemory& memory_;
    const std::byte* at_;
    Use use_;
  };

  /// While it exists, all blocks may be accessed; none may be allocated or released.
  class OpenAll {
   public:
    explicit OpenAll(GuardedMemory& memory);
    ~OpenAll();
    OpenAll(const OpenAll&) = delete;
    OpenAll& operator=(const OpenAll&) = delete;

   private:
    GuardedMemory& memory_;
    std::lock_guard<std::mutex> lock_;
  };

 private:
  struct Block {
    std::size_t bytes = 0, mapped = 0;
    int readers = 0, writers = 0;  ///< number of existing Opens
  };
  void open(const std::byte* at, Use use, int change);
  /// Counts one more, or one less, user of a block.
  static void change(const std::byte* at, Block& block, Use use, int by);

  std::mutex mutex_;
  std::map<const std::byte*, Block> blocks_;
};

}  // namespace tessera::test

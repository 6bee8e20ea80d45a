// SPDX-License-Identifier: Apache-2.0
// The memory that a save reads while training continues to use it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// Copies all spans into new memory, redirects them to it, and returns its owner.
using CopyOut =
    std::function<std::shared_ptr<const void>(std::vector<std::span<const std::byte>>& spans)>;

/// The bytes of pieces that one thread writes to disk until another thread is about to change them;
/// what is not written by then is copied. Threads: a reader, which reads each piece from its first
/// byte to its last, and an owner.
class LiveBytes {
 public:
  explicit LiveBytes(const std::vector<PieceBytes>& pieces);
  /// Called by the reader: copies the bytes of `part`, a part of one piece, to `to`.
  void read(std::span<const std::byte> part, std::byte* to);
  /// Called by the owner: after it the pieces' own memory may change. Waits for at most one read().
  /// An exception from `copy` is passed on, and nothing has changed.
  void move_out(const CopyOut& copy);
  /// Called by the owner: the reader has ended; releases the copies.
  void release_copies() { memory_.reset(); }

 private:
  /// The unread rest of each piece, keyed by the original address of the piece.
  std::map<const std::byte*, std::span<const std::byte>> left_;
  std::shared_ptr<const void> memory_;  ///< owner of copies
  std::mutex mutex_;
};

}  // namespace tessera::checkpoint

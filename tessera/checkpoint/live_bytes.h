// SPDX-License-Identifier: Apache-2.0
// What a save reads while it is in use.
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

/// Puts memory of their own, with the same bytes, behind all spans; what it returns owns it.
using CopyOut =
    std::function<std::shared_ptr<const void>(std::vector<std::span<const std::byte>>& spans)>;

/// The bytes of pieces that one thread writes to a disk, until another is about to change them:
/// what is not written by then is copied. Threads: a reader, which takes each piece from its first
/// byte to its last, and an owner.
class LiveBytes {
 public:
  explicit LiveBytes(const std::vector<PieceBytes>& pieces);
  /// The reader: the bytes that lay at `part`, a part of one piece.
  void read(std::span<const std::byte> part, std::byte* to);
  /// The owner: from now on the pieces' own memory may change. Waits for no more than one read().
  /// What `copy` throws comes out, and nothing has changed.
  void move_out(const CopyOut& copy);
  /// The owner: the reader has ended; copies go.
  void let_go() { memory_.reset(); }

 private:
  /// What is not read yet of each piece, by where the piece lay at first.
  std::map<const std::byte*, std::span<const std::byte>> left_;
  std::shared_ptr<const void> memory_;  ///< of copies
  std::mutex mutex_;
};

}  // namespace tessera::checkpoint

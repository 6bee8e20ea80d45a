// SPDX-License-Identifier: Apache-2.0
// The buffers through which the values of units travel between a tier and working memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/memory/tiers/tier.h"

namespace tessera::parallel {

/// Memory: as many buffers as were asked for, each of the size of the largest unit, from their
/// first use on. Errors: those of the tier. Used only on the rank's own
/// thread.
class UnitBuffers {
 public:
  /// `tier` must outlive this. The ledger counts the memory under `tag`.
  UnitBuffers(memory::Tier& tier, int buffers, memory::Tag tag = memory::Tag::Optimizer);

  /// Sets the sizes of consecutive units from `first` on, which share a file of the tier; all their
  /// bytes are zero. Replaces units that were set with the same `first`. `what` names them in
  /// errors.
  void set_units(std::size_t first, std::span<const std::int64_t> bytes, const std::string& what);
  /// Starts to read the unit if a buffer is free, and otherwise does nothing. Never waits.
  void fetch(std::size_t unit);
  /// Returns the unit's bytes, aligned to 64, until release(); waits for them. At most as many
  /// units as there are buffers can be acquired at a time, each once.
  std::span<std::byte> acquire(std::size_t unit);
  /// Like acquire(), but the bytes are undefined, because the caller writes all that it will read.
  std::span<std::byte> replace(std::size_t unit);
  /// Ends the use of the unit's bytes; starts to write them if they `changed`.
  void release(std::size_t unit, bool changed);
  /// Waits until the unit is written, which frees its buffer.
  void settle(std::size_t unit);
  /// The bytes of the units that were set with this `first`, as they are now; unit_begin() is the
  /// position of one of them.
  [[nodiscard]] std::shared_ptr<const ByteSource> snapshot(std::size_t first);
  [[nodiscard]] std::int64_t unit_begin(std::size_t unit) const { return places_.at(unit).begin; }

 private:
  struct Place {
    memory::TierFile* file = nullptr;
    std::int64_t begin = 0, bytes = 0;  ///< in the file; whole blocks
    std::int64_t used = 0;              ///< bytes of the unit
  };
  enum class Use : std::uint8_t { Free, Reading, Leased, Writing };
  struct Buffer {
    memory::StagingMemory memory;
    Use use = Use::Free;
    std::size_t unit = 0;
    memory::Ticket ticket;
  };
  [[nodiscard]] Buffer* buffer_of(std::size_t unit);
  [[nodiscard]] Buffer* free_buffer();
  Buffer& any_buffer();
  void give(Buffer& buffer, std::size_t unit);
  void read(Buffer& buffer, std::size_t unit);
  void empty(Buffer& buffer);
  [[nodiscard]] std::span<std::byte> blocks_of(const Buffer& buffer) const;

  memory::Tier& tier_;
  memory::Tag tag_;
  int most_;                                                        ///< buffers
  std::deque<Buffer> buffers_;                                      ///< those that were used so far
  std::map<std::size_t, std::unique_ptr<memory::TierFile>> files_;  ///< by first unit
  std::map<std::size_t, Place> places_;                             ///< by unit
  std::int64_t largest_ = 0;
};

}  // namespace tessera::parallel

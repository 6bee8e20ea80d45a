// SPDX-License-Identifier: Apache-2.0
// Counts records that equal an earlier one, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace tessera::tasks {

/// Counts hashes that occur more than once. Beyond `most` different ones it keeps every second,
/// then every fourth, ..., and estimates the counts from these. Memory: about 50 bytes per kept
/// hash.
class Duplicates {
 public:
  explicit Duplicates(std::size_t most = std::size_t{2} << 20U) : most_(most) {}
  void add(std::uint64_t hash);
  /// Number of added hashes that equal an earlier one.
  [[nodiscard]] std::int64_t count() const { return repeated_ << shift_; }
  /// False if count() is an estimate.
  [[nodiscard]] bool exact() const { return shift_ == 0; }
  /// Number of hashes that this one represents: 1 if all are kept, more if only a sample of them is
  /// kept, and 0 if this hash was not added or not kept.
  [[nodiscard]] std::int64_t weight_of(std::uint64_t hash) const;

 private:
  [[nodiscard]] bool keeps(std::uint64_t hash) const {
    return (hash & ((std::uint64_t{1} << shift_) - 1)) == 0;
  }
  void thin_out();

  std::size_t most_;
  unsigned shift_ = 0;  // hashes whose lowest bits, as many, are 0 are kept
  std::int64_t repeated_ = 0;
  std::unordered_map<std::uint64_t, std::int64_t> times_;
};

}  // namespace tessera::tasks

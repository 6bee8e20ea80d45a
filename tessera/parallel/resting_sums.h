// SPDX-License-Identifier: Apache-2.0
// Sums of gradients that rest in a tier from the backward pass of their block to the update, except
// while they are used. Source: Rajbhandari et al. 2021, "ZeRO-Infinity" (gradients on NVMe).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"
#include "tessera/memory/tiers/tier.h"

namespace tessera::parallel {

/// The place of a rank's sums of gradients between their uses.
struct SumPlace {
  memory::Tier* tier = nullptr;  ///< nullptr: working memory
  int buffers = 3;               ///< sums in memory at a time; see sum_buffers()
};
/// The number of sums in memory at a time if `asked` are asked for and `together` are used at once;
/// 0 if none is. More than three would not be read or written further ahead.
int sum_buffers(int asked, int together);
/// True if a sum of `bytes` rests in a tier with blocks of `block` bytes; smaller ones stay in
/// memory, because they would take a block each.
constexpr bool sum_rests(std::int64_t bytes, std::int64_t block) {
  return bytes >= block;
}

/// Sums of similar sizes share buffers, so that small ones, such as those of tiles, do not occupy
/// the buffers of large ones.
inline constexpr std::size_t kSumClasses = 4;
/// Returns the class of a sum whose largest companion has `largest` bytes; class 0 is the largest.
std::size_t sum_class(std::int64_t bytes, std::int64_t largest);
/// A number for each class.
using OfSumClasses = std::array<int, kSumClasses>;
/// Counts the sums of each class that are used at once: those of a block, and all uses of a tied
/// parameter, which are added to each other.
class SumsTogether {
 public:
  /// Counts a use in `block`, one of `uses` of the same buffer.
  void count(std::size_t of_class, int block, int uses);
  [[nodiscard]] const OfSumClasses& most() const { return most_; }

 private:
  std::map<std::pair<std::size_t, int>, int> of_block_;
  OfSumClasses most_{};
};

/// Memory: for each class its buffers times its largest sum, Tag::Gradients. Errors: those of the
/// tier. Used only on the rank's own thread.
class RestingSums {
 public:
  enum class Use : std::uint8_t { Read, Change, Replace };

  /// The tier must outlive this and all tensors that hold() returned.
  /// `buffers`: at least one for each class that has sums.
  RestingSums(memory::Tier& tier, const OfSumClasses& buffers);

  /// Adds a sum of `numel` values to a class; returns its number. `what` names it in errors.
  std::size_t add(std::size_t of_class, std::int64_t numel, DType dtype, const std::string& what);
  /// Starts to read the sum if a buffer is free, for which it waits for all writes but the last.
  void fetch(std::size_t number);
  /// Returns the sum, [numel], in memory as long as the tensor or a view of it exists; then starts
  /// to write it unless it was only read. Replace: the values are undefined at first. At most as
  /// many sums of a class as it has buffers can be held at a time; holds of the same sum share its
  /// memory.
  [[nodiscard]] at::Tensor hold(std::size_t number, Use use);
  [[nodiscard]] std::size_t class_of(std::size_t number) const { return sums_[number].of_class; }
  [[nodiscard]] int buffers(std::size_t of_class) const { return buffers_[of_class]; }

 private:
  struct Class;
  struct Hold;
  struct Sum {
    std::size_t of_class = 0;
    std::int64_t numel = 0;
    DType dtype = DType::F32;
    std::weak_ptr<Hold> hold;
  };

  OfSumClasses buffers_;
  std::array<std::shared_ptr<Class>, kSumClasses> classes_;
  std::vector<Sum> sums_;
};

/// Writes the sums of squares of the chunks of `sum` to `out`, as GradientNorm computes them; a
/// part of a sum in 16 bits is widened at a time.
void add_chunk_squares(const at::Tensor& sum, std::vector<double>& out);

}  // namespace tessera::parallel

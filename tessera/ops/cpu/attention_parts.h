// SPDX-License-Identifier: Apache-2.0
// The common part of both implementations of blockwise attention. Include in .cpp files only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/ops/cpu/attention_blocks.h"
#include "tessera/ops/cpu/dropout_rows.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {

/// One head's rows in a tensor [B, H, N, K].
class Heads {
 public:
  explicit Heads(const at::Tensor& x)
      : data_(static_cast<std::byte*>(x.data_ptr())),
        batch_(x.stride(0)),
        head_(x.stride(1)),
        row_(x.stride(2)),
        heads_(x.size(1)),
        width_(x.element_size()) {
    TESSERA_ASSERT(x.stride(3) == 1);
  }
  [[nodiscard]] StridedRows rows(std::int64_t index, std::int64_t first) const {
    const std::int64_t element = index / heads_ * batch_ + index % heads_ * head_ + first * row_;
    return {data_ + element * width_, row_};
  }

 private:
  std::byte* data_;
  std::int64_t batch_, head_, row_, heads_, width_;
};

/// Number of keys multiplied together, so that their scores fit into a core's cache.
inline constexpr std::int64_t kKeys = 512;

/// The form of the scores of matrix `index` of all B * H, with `heads` per sample, in the block
/// that begins at this query and this key.
inline ScoreForm score_form(const AttentionBlocks& how,
                            std::int64_t heads,
                            std::int64_t index,
                            std::int64_t query,
                            std::int64_t key) {
  const std::int64_t head = index % heads;
  ScoreForm out{.scale = how.scale, .cap = how.softcap};
  if (how.bias_BS.defined())
    out.of_keys = how.bias_BS.data_ptr<float>() + index / heads * how.bias_BS.size(1) + key;
  if (const at::Tensor& bias = how.bias_HTS; bias.defined()) {
    out.of_pairs = bias.data_ptr<float>() + head * bias.stride(0) + query * bias.stride(1) + key;
    out.pair_stride = bias.stride(1);
  }
  if (!how.alibi.empty()) {
    out.slope = how.alibi[static_cast<std::size_t>(head)];
    out.distance = key - how.query_offset - query;
  }
  return out;
}
/// The gradient of the bias for that block, or nullptr.
inline float* bias_gradient(const AttentionBlocks& how,
                            std::int64_t heads,
                            std::int64_t index,
                            std::int64_t query,
                            std::int64_t key) {
  const at::Tensor& d = how.dbias_HTS;
  if (!d.defined()) return nullptr;
  return d.data_ptr<float>() + (index % heads * d.size(1) + query) * d.size(2) + key;
}

/// Number of work units of the backward: a unit has the heads of keys and values unit, unit + units
/// and so on of all samples, in this order. With a bias, a unit is one head of each sample, because
/// its bias gradients are summed; else there is a unit per head and sample.
inline std::int64_t shared_units(const AttentionBlocks& how, const at::Tensor& k_BGSK) {
  return how.dbias_HTS.defined() ? k_BGSK.size(1) : k_BGSK.size(0) * k_BGSK.size(1);
}

/// Number of floats for the derivative of a soft cap in a row of scores.
inline std::int64_t cap_slopes(const AttentionBlocks& how) {
  return how.softcap > 0.0F ? kKeys : 0;
}
/// The factor of sums of products with probabilities: 0 if a query sees nothing.
inline float inverse_sum(float sum) {
  return sum == 0.0F ? 0.0F : 1.0F / sum;
}

/// Writes dropout's factors for `count` probabilities, at most kKeys of a row.
inline void draw_kept(const DropoutRows& dropout,
                      const DropoutRows::Place& place,
                      std::int64_t count,
                      float* to) {
  static const auto ones = [] {
    std::array<float, kKeys> out{};
    out.fill(1.0F);
    return out;
  }();
  dropout.draw(kF32, ones.data(), to, count, place);
}

/// The scratch memory of each thread, in floats.
class Scratch {
 public:
  /// The size of a piece, rounded up to cache lines.
  static constexpr std::int64_t on_lines(std::int64_t floats) { return (floats + 15) / 16 * 16; }
  Scratch(std::int64_t floats, const at::Tensor& like)
      : memory_(at::empty({at::get_num_threads(), floats}, like.options().dtype(at::kFloat))),
        next_(memory_.data_ptr<float>()),
        floats_(floats) {}
  /// This thread's memory; take() returns pieces that begin on a cache line.
  class Mine {
   public:
    explicit Mine(float* next) : next_(next) {}
    float* take(std::int64_t floats) {
      float* const out = next_;
      next_ += on_lines(floats);
      return out;
    }

   private:
    float* next_;
  };
  [[nodiscard]] Mine mine() const { return Mine(next_ + at::get_thread_num() * floats_); }

 private:
  at::Tensor memory_;
  float* next_;
  std::int64_t floats_;
};

}  // namespace tessera::ops::cpu

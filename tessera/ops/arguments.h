// SPDX-License-Identifier: Apache-2.0
// What every backend derives from the arguments of an operation in the same way, and the checks
// that the operations share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/ops/attention.h"
#include "tessera/ops/dropout.h"

namespace tessera::ops {

/// "[2, 3]", for error messages and for the log of operations.
std::string shape(const at::Tensor& x);

/// Error{Shape} unless `to` is contiguous fp32 with `numel` elements.
void check_destination(const at::Tensor& to, std::int64_t numel, const char* name);

/// Error{Data} unless every id is int64 and in [0, rows). Copies ids of another device to the host.
void check_ids(const at::Tensor& ids, std::int64_t rows);

/// How the elements of a tensor lie in their samples, by its DropoutKey.
struct DropoutRuns {
  std::int64_t each = 0;    ///< elements of a sample in the tensor
  std::int64_t length = 0;  ///< elements of one of the sample's parts
  std::int64_t run = 0;  ///< consecutive elements of the tensor that are consecutive in the sample
};
/// Error{Shape} unless the tensor can be cut into the parts of `key`.
DropoutRuns dropout_runs(const at::Tensor& x, const DropoutKey& key);

/// An element is kept where the upper 24 bits of its random word reach this number, which is
/// exactly where uniform_float(word) >= p.
std::uint32_t dropout_threshold(double p);
/// What kept elements are multiplied by.
float dropout_scale(double p);

/// `parts` tensors [B, H, N, K] like `x_BHNK` whose memory together is [B, N, parts, H, K]: the
/// layout of a fused projection's result and of its gradient.
std::vector<at::Tensor> fused_heads(const at::Tensor& x_BHNK, std::int64_t parts);

/// args.scale, or its default.
double attention_scale(const AttentionArgs& args, const at::Tensor& q_BHTK);
/// Query t sees the keys [begin + t, end + t), as far as there are any.
struct KeyBand {
  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max() / 4;
  std::int64_t begin = -kEndless, end = kEndless;
  /// Of `keys` keys those that any of so many queries from `query` on sees; none: [0, 0).
  [[nodiscard]] Run of(std::int64_t query, std::int64_t queries, std::int64_t keys) const {
    const std::int64_t first = std::max<std::int64_t>(begin + query, 0),
                       last = std::min(end + query + queries - 1, keys);
    return first < last ? Run{first, last} : Run{0, 0};
  }
};
/// The band of attention, causal or not, with a window or without. Padding counts as seen.
KeyBand key_band(const AttentionArgs& args);
/// The window of the whole matrices of probabilities that q and k see. Error{Shape} unless
/// args.place has as many queries and keys as q and k.
DropoutWindow attention_window(const AttentionArgs& args,
                               const at::Tensor& q_BHTK,
                               const at::Tensor& k_BGSK);

}  // namespace tessera::ops

// SPDX-License-Identifier: Apache-2.0
// Values that every backend derives from the arguments of an operation, and the argument checks
// that operations share.
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

/// Throws Error{Shape} unless `to` is contiguous fp32 with `numel` elements.
void check_destination(const at::Tensor& to, std::int64_t numel, const char* name);

/// Throws Error{Data} unless every id is int64 and in [0, rows). Copies ids from another device to
/// the host.
void check_ids(const at::Tensor& ids, std::int64_t rows);

/// The places of a tensor's elements in their samples, according to its DropoutKey.
struct DropoutRuns {
  std::int64_t each = 0;    ///< elements of one sample in the tensor
  std::int64_t length = 0;  ///< elements of one part of a sample
  std::int64_t run = 0;  ///< consecutive elements of the tensor that are consecutive in the sample
};
/// Throws Error{Shape} unless the tensor can be split into the parts of `key`.
DropoutRuns dropout_runs(const at::Tensor& x, const DropoutKey& key);

/// An element is kept if the upper 24 bits of its random word reach this number, which is
/// equivalent to uniform_float(word) >= p.
std::uint32_t dropout_threshold(double p);
/// The factor of kept elements.
float dropout_scale(double p);

/// Returns `parts` tensors [B, H, N, K] like `x_BHNK` whose common memory is [B, N, parts, H, K]:
/// the layout of a fused projection's result and of its gradient.
std::vector<at::Tensor> fused_heads(const at::Tensor& x_BHNK, std::int64_t parts);

/// Returns args.scale, or its default.
double attention_scale(const AttentionArgs& args, const at::Tensor& q_BHTK);
/// Query t sees the keys [begin + t, end + t), as far as they exist.
struct KeyBand {
  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max() / 4;
  std::int64_t begin = -kEndless, end = kEndless;
  /// The keys, of `keys`, that at least one of `queries` queries from `query` on sees; none: [0,
  /// 0).
  [[nodiscard]] Run of(std::int64_t query, std::int64_t queries, std::int64_t keys) const {
    const std::int64_t first = std::max<std::int64_t>(begin + query, 0),
                       last = std::min(end + query + queries - 1, keys);
    return first < last ? Run{first, last} : Run{0, 0};
  }
};
/// The band of causal or full attention, with or without a window. Padding counts as visible.
KeyBand key_band(const AttentionArgs& args);
/// The dropout window of q and k within the whole matrices of probabilities. Throws Error{Shape}
/// unless args.place has as many queries and keys as q and k.
DropoutWindow attention_window(const AttentionArgs& args,
                               const at::Tensor& q_BHTK,
                               const at::Tensor& k_BGSK);

}  // namespace tessera::ops

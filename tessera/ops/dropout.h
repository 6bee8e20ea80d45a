// SPDX-License-Identifier: Apache-2.0
// Dropout from counters: a mask is a function of (seed, site, sample, element), never of layout or
// order.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// One dropout of one block: which random bits it draws. Row b of a tensor belongs to
/// sample_ids[b], the number of the sample in the whole run (samples consumed before it), so that a
/// mask never repeats and no layout changes it.
struct DropoutKey {
  double p = 0.0;                        ///< probability of zero
  std::uint64_t key = 0;                 ///< seed and site mixed
  std::vector<std::int64_t> sample_ids;  ///< one for each index of dim 0
  std::int64_t element_offset = 0;       ///< of this tensor's first element in the sample
  /// The sample lies in equal parts on several ranks, and the tensor holds this one: its first
  /// element is `part` times its elements of a sample further on.
  std::int64_t part = 0;
  /// The last dim lies in `columns` equal parts on several ranks, and the tensor holds part
  /// `column` of it.
  std::int64_t column = 0, columns = 1;
  [[nodiscard]] bool active() const { return p > 0.0; }
};
/// mask * x / (1 - p), x of [B, ...]; element e of sample s uses word e % 4 of Philox(key)(e / 4,
/// s). The same call on the gradient is the backward. Works on meta.
at::Tensor dropout(const at::Tensor& x, const DropoutKey& key);

}  // namespace tessera::ops

// SPDX-License-Identifier: Apache-2.0
// The movement of tokens to rows that are sorted by expert, and back. Legend: N tokens, E experts,
// K experts that a token uses, R rows, C channels.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// The order in which experts process the choices of tokens: row after row of expert 0, then of
/// expert 1, ...; within an expert in the order of the tokens.
struct ExpertRows {
  std::vector<std::int64_t> counts;  ///< [E]
  at::Tensor token_of_R;             ///< int64
  at::Tensor choice_of_R;            ///< int64: n * K + k
  at::Tensor row_of_NK;              ///< int64, the inverse; -1: dropped
  [[nodiscard]] ExpertRows on(c10::Device device) const;
};
/// A stable counting sort of the choices (int32 on the CPU, -1: dropped). Cost: O(N K + E).
ExpertRows sort_by_expert(const at::Tensor& experts_NK, std::int64_t num_experts);

// The following work on any device and on meta; indices are on the device of the rows. Every sum is
// in fp32, in the order of a token's choices, and is rounded once.

/// Row r is the row of its token, multiplied by its weight unless `weights_NK` (fp32) is undefined.
at::Tensor rows_of_tokens(const at::Tensor& x_NC,
                          const ExpertRows& rows,
                          const at::Tensor& weights_NK);
/// The sum of each token's rows, multiplied by their weights unless these are undefined: [N, C].
at::Tensor sum_of_rows(const at::Tensor& y_RC,
                       const ExpertRows& rows,
                       const at::Tensor& weights_NK);
/// The scalar product of each row with its token's row of `x_NC`: fp32 [N, K], 0 where dropped.
at::Tensor products_of_rows(const at::Tensor& x_NC, const at::Tensor& y_RC, const ExpertRows& rows);

}  // namespace tessera::ops

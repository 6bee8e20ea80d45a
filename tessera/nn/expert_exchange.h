// SPDX-License-Identifier: Apache-2.0
// The exchange of rows between the ranks that divide the experts of a layer. Legend: S sources (the
// ranks of the group), E experts, R rows of this rank's tokens, Q rows for this rank's experts, C
// channels.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"

namespace tessera::nn {

/// The rows of one micro-batch that go to one expert.
struct ExpertUnit {
  int source = 0;                    ///< index of the rank whose micro-batch it is
  std::int64_t expert = 0;           ///< among the experts of this rank
  std::int64_t begin = 0, rows = 0;  ///< place among the Q rows
};

/// The exchanges of one layer and micro-batch. All ranks of the group construct it and call the
/// same functions, whatever rows they have. Without ranks that divide the experts, or with one,
/// nothing is sent. Cost: a message of E numbers in the constructor; to_owners() and to_sources()
/// send each row once, except those that stay.
class ExpertExchange {
 public:
  /// `counts`: this rank's rows for each of all experts; R is their sum.
  ExpertExchange(StepContext& context, const std::vector<std::int64_t>& counts, bool meta);

  /// The experts [first, last) of this rank.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> own() const { return own_; }
  /// The non-empty units of this rank's experts, in the order of the rows: by source, then expert.
  [[nodiscard]] const std::vector<ExpertUnit>& units() const { return units_; }
  [[nodiscard]] std::int64_t num_rows() const { return rows_; }  ///< Q
  [[nodiscard]] int sources() const { return sources_; }

  /// [R, C], sorted by expert -> [Q, C].
  [[nodiscard]] at::Tensor to_owners(const at::Tensor& rows_RC,
                                     const char* what,
                                     StepContext& context) const;
  /// [Q, C] -> [R, C].
  [[nodiscard]] at::Tensor to_sources(const at::Tensor& rows_QC,
                                      const char* what,
                                      StepContext& context) const;

 private:
  at::Tensor exchange(const at::Tensor& rows,
                      const std::vector<std::int64_t>& parts,
                      const char* what,
                      StepContext& context) const;
  void list_units(const std::vector<std::int64_t>& counts_SE, std::int64_t num_experts);

  const ExpertParallel* ranks_ = nullptr;  ///< nullptr: nothing is sent
  int sources_ = 1;
  std::pair<std::int64_t, std::int64_t> own_ = {0, 0};
  std::vector<std::int64_t> parts_;  ///< [S, S]: rows from source i to owner j
  std::vector<ExpertUnit> units_;
  std::int64_t rows_ = 0;
};

}  // namespace tessera::nn

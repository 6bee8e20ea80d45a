// SPDX-License-Identifier: Apache-2.0
// Pretraining texts that a policy learns together with its completions (PPO-ptx).
#pragma once

#include <cstdint>

#include "tessera/data/dataset.h"
#include "tessera/data/sample_order.h"
#include "tessera/nn/block.h"

namespace tessera::rlhf {

/// Chooses the samples of each update. They are a function of the number of updates, so that they
/// depend neither on the ranks nor on where a run was resumed.
class PretrainingTexts {
 public:
  /// `texts` must outlive this object. `each`: the number of samples of an update.
  PretrainingTexts(const data::Dataset& texts, std::int64_t each, bool shuffle, std::uint64_t seed)
      : texts_(texts), order_(texts.size(), shuffle, seed), each_(each) {}
  [[nodiscard]] std::int64_t each() const { return each_; }
  /// Returns samples [first, end) of the update after `updates` updates. Their labels are
  /// "text_labels", by which the objective distinguishes them from completions. Pure.
  [[nodiscard]] nn::Batch samples(std::int64_t updates, std::int64_t first, std::int64_t end) const;

 private:
  const data::Dataset& texts_;
  data::SampleOrder order_;
  std::int64_t each_;
};

}  // namespace tessera::rlhf

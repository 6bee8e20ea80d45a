// SPDX-License-Identifier: Apache-2.0
// The number of tokens that each expert of a layer processed, for reports and for corrections of
// the router.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/tensor/param.h"

namespace tessera::nn {

/// Counts of one layer on this rank since they were last taken. A backward pass adds the choices of
/// its micro-batch, so that evaluation and recomputed forwards do not count.
class ExpertLoad {
 public:
  void add(const std::vector<std::int64_t>& chosen_E, std::int64_t dropped);
  /// The choices of each expert, including dropped ones, and the number of dropped choices; resets
  /// them. Empty before the first backward.
  struct Counts {
    std::vector<std::int64_t> chosen_E;
    std::int64_t dropped = 0;
  };
  [[nodiscard]] Counts take();

 private:
  Counts counts_;
};

/// A block that has experts. It is the only state of a block that outlives a forward: integers that
/// no pass reads.
class HasExperts {
 public:
  virtual ~HasExperts() = default;
  struct Router {
    ExpertLoad* load = nullptr;
    std::int64_t num_experts = 0, top_k = 0;
    Param* correction = nullptr;  ///< nullptr: it has none
    double correction_rate = 0.0;
    bool drops = false;  ///< experts have a capacity
  };
  /// nullptr as `load`: this layer has an MLP.
  [[nodiscard]] virtual Router router() const = 0;
};

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// The terms of a loss by name: what reports and metrics.jsonl show beside the loss itself.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/parallel/executor.h"

namespace tessera::engine {

/// The mean of one term of the loss (nn::Term), without its weight. Terms of one name that several
/// blocks give are added up.
struct Metric {
  std::string name;
  double mean = 0.0;         ///< of a step: over its global batch; 0 where the denominator is 0
  double denominator = 0.0;  ///< what the sum is divided by: tokens, samples
};
/// By name, each name once: those of the objective in its order, then those of other blocks.
using Metrics = std::vector<Metric>;
/// nullptr: there is none of that name.
const Metric* find_metric(const Metrics& metrics, std::string_view name);
Metric* find_metric(Metrics& metrics, std::string_view name);
/// " | accuracy 0.5000" for every metric but "loss", which a line of a report begins with; empty
/// for a model with one term.
std::string metrics_text(const Metrics& metrics);

/// A term that some rank has seen.
struct TermKey {
  int block = 0;
  std::string name;
  int denominator = 0;
  double weight = 1.0;
};
/// The terms that any rank of `group` has seen, in an order that all ranks agree about: those of
/// the block `objective` first, then by block. Collective over `group`.
std::vector<TermKey> agree_on_terms(comm::World& world,
                                    const comm::Group& group,
                                    const std::vector<TermKey>& mine,
                                    int objective);
/// The values of `terms` in the order of `keys`, `each` of them for a key, zeros for a term that is
/// absent.
std::vector<double> values_in_order(const std::vector<TermKey>& keys,
                                    const std::vector<parallel::TermValues>& terms,
                                    std::size_t each);

/// Reduces the terms of a step over the job as the loss is reduced: the same bits for any layout.
/// Collective; ranks call it in every step.
class TermReduction {
 public:
  /// `objective`: the block of the objective.
  TermReduction(comm::World& world, int stages, int objective)
      : world_(world), stages_(stages), objective_(objective) {}
  /// Whether the ranks have to agree about the terms before they can be reduced: this rank has seen
  /// one for the first time.
  [[nodiscard]] bool has_new(const parallel::StepOutput& out) const;
  /// `loss`: of the step, reduced already. `any_new`: whether has_new() is true on any rank. A
  /// model with a single term of weight 1 costs no communication: its mean is the loss.
  Metrics reduce(const parallel::StepOutput& out, int num_micros, double loss, bool any_new);

 private:
  comm::World& world_;
  int stages_, objective_;
  std::vector<TermKey> known_;
};

}  // namespace tessera::engine

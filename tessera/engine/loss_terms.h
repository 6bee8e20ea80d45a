// SPDX-License-Identifier: Apache-2.0
// The loss terms by name, which reports and metrics.jsonl show in addition to the loss itself.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/parallel/executor.h"

namespace tessera::engine {

/// The mean of one loss term (nn::Term), without its weight. Terms of the same name from several
/// blocks are added.
struct Metric {
  std::string name;
  double mean = 0.0;         ///< over the step's global batch; 0 if the denominator is 0
  double denominator = 0.0;  ///< the divisor of the sum: tokens, samples
};
/// One entry per name: the objective's terms in its order, then those of other blocks.
using Metrics = std::vector<Metric>;
/// Returns nullptr if there is no metric of that name.
const Metric* find_metric(const Metrics& metrics, std::string_view name);
Metric* find_metric(Metrics& metrics, std::string_view name);
/// " | accuracy 0.5000" for every metric except "loss", with which a report line begins; empty for
/// a model with one term.
std::string metrics_text(const Metrics& metrics);

/// A term that some rank has produced.
struct TermKey {
  int block = 0;
  std::string name;
  int denominator = 0;
  double weight = 1.0;
};
/// The terms that any rank of `group` has produced, in the same order on all ranks: those of the
/// block `objective` first, then by block. Collective over `group`.
std::vector<TermKey> agree_on_terms(comm::World& world,
                                    const comm::Group& group,
                                    const std::vector<TermKey>& mine,
                                    int objective);
/// The values of `terms` in the order of `keys`, `each` values per key; zeros for an absent term.
std::vector<double> values_in_order(const std::vector<TermKey>& keys,
                                    const std::vector<parallel::TermValues>& terms,
                                    std::size_t each);

/// Reduces the terms of a step over the job in the same way as the loss, with the same bits in
/// every layout. Collective; ranks call it in every step.
class TermReduction {
 public:
  /// `objective`: index of the objective's block.
  TermReduction(comm::World& world, int stages, int objective)
      : world_(world), stages_(stages), objective_(objective) {}
  /// True if this rank has a new term, so that the ranks must agree on the terms before they can be
  /// reduced.
  [[nodiscard]] bool has_new(const parallel::StepOutput& out) const;
  /// `loss`: the step's loss, already reduced. `any_new`: whether has_new() is true on any rank. A
  /// model with a single term of weight 1 needs no communication: its mean is the loss.
  Metrics reduce(const parallel::StepOutput& out, int num_micros, double loss, bool any_new);

 private:
  comm::World& world_;
  int stages_, objective_;
  std::vector<TermKey> known_;
};

}  // namespace tessera::engine

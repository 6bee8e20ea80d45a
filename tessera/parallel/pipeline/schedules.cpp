// SPDX-License-Identifier: Apache-2.0
// The schedules by name. Legend: p stages, v chunks, m micro-batches, r stage.
#include <algorithm>
#include <array>
#include <utility>

#include "tessera/parallel/pipeline/schedule.h"

namespace tessera::parallel {
namespace {

/// A list to which actions are appended; every (kind, chunk) counts its own micro-batches, so they
/// ascend.
class Plan {
 public:
  explicit Plan(const PipelineSize& size) : micros_(size.micros) {
    for (auto& counts : next_)
      counts.assign(static_cast<std::size_t>(size.chunks), 0);
  }
  /// Appends the next micro-batch of that kind; does nothing once all micro-batches are appended.
  void add(ActionKind kind, int chunk = 0) {
    int& next = next_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(chunk)];
    if (next < micros_) actions_.push_back({.kind = kind, .chunk = chunk, .micro = next});
    ++next;
  }
  [[nodiscard]] int count(ActionKind kind, int chunk = 0) const {
    return next_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(chunk)];
  }
  [[nodiscard]] std::vector<Action> take() { return std::move(actions_); }

 private:
  int micros_;
  std::array<std::vector<int>, static_cast<std::size_t>(ActionKind::SendGradient) + 1> next_;
  std::vector<Action> actions_;
};

/// GPipe: all forwards, then all backwards. Bubble (p - 1) / m; keeps m micro-batches. Source:
/// Huang et al. 2019, "GPipe".
std::vector<Action> gpipe(const PipelineSize& size, int /*stage*/) {
  Plan plan(size);
  for (int m = 0; m < size.micros; ++m)
    plan.add(ActionKind::Forward);
  for (int m = 0; m < size.micros; ++m)
    plan.add(ActionKind::Backward);
  return plan.take();
}

/// 1F1B: after p - 1 - r forwards, one forward and one backward in turn. Bubble (p - 1) / m; keeps
/// min(p - r, m) micro-batches. Source: Narayanan et al. 2021, "Memory-efficient pipeline-parallel
/// DNN training".
std::vector<Action> one_forward_one_backward(const PipelineSize& size, int stage) {
  Plan plan(size);
  const int warm_up = std::min(size.stages - 1 - stage, size.micros);
  for (int m = 0; m < warm_up; ++m)
    plan.add(ActionKind::Forward);
  for (int m = 0; m < size.micros; ++m) {
    plan.add(ActionKind::Forward);
    plan.add(ActionKind::Backward);
  }
  return plan.take();
}

/// 1F1B over p * v parts, in rounds of at least p micro-batches per chunk: there are m / p rounds,
/// and what is left over makes the first ones longer. With rounds of p the bubble is (p - 1) / (v
/// m). Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU
/// clusters"; longer rounds: Megatron-LM's --microbatch-group-size-per-virtual-pipeline-stage.
std::vector<Action> interleaved(const PipelineSize& size, int stage) {
  const int p = size.stages, v = size.chunks, total = size.micros * v;
  const int rounds = std::max(size.micros / p, 1), longest = (size.micros + rounds - 1) / rounds;
  const int warm_up =
      size.micros == p ? total : std::min(2 * (p - 1 - stage) + (v - 1) * longest, total);
  // Turn (of the chunks, in the order of forward passes) and micro-batch of each pass.
  std::vector<std::pair<int, int>> passes;
  for (int round = 0, begin = 0; round < rounds; ++round) {
    const int end = begin + size.micros / rounds + (round < size.micros % rounds ? 1 : 0);
    for (int turn = 0; turn < v; ++turn) {
      for (int micro = begin; micro < end; ++micro)
        passes.emplace_back(turn, micro);
    }
    begin = end;
  }
  std::vector<Action> actions;
  const auto add = [&](ActionKind kind, int k) {
    const auto [turn, micro] = passes[static_cast<std::size_t>(k)];
    actions.push_back(
        {.kind = kind, .chunk = kind == ActionKind::Forward ? turn : v - 1 - turn, .micro = micro});
  };
  for (int k = 0; k < warm_up; ++k)
    add(ActionKind::Forward, k);
  for (int k = 0; k < total; ++k) {
    if (warm_up + k < total) add(ActionKind::Forward, warm_up + k);
    add(ActionKind::Backward, k);
  }
  return actions;
}

/// 1F1B with weight gradients deferred by r micro-batches, which fills most of the bubble: p - 1
/// times (forward + inputs - weights) remains. Every stage keeps at most p micro-batches, as the
/// first stage of 1F1B does. Source: Qi et al. 2023, "Zero bubble pipeline parallelism", ZB-H1.
std::vector<Action> zero_bubble_h1(const PipelineSize& size, int stage) {
  Plan plan(size);
  const int warm_up = std::min(size.stages - 1 - stage, size.micros);
  for (int m = 0; m < warm_up; ++m)
    plan.add(ActionKind::Forward);
  for (int m = 0; m < size.micros; ++m) {
    plan.add(ActionKind::Forward);
    plan.add(ActionKind::BackwardInputs);
    if (m >= stage) plan.add(ActionKind::BackwardWeights);
  }
  while (plan.count(ActionKind::BackwardWeights) < size.micros)
    plan.add(ActionKind::BackwardWeights);
  return plan.take();
}

/// Two chunks per stage, assigned there and back. There is no bubble if forward, inputs and weights
/// take the same time and there are at least 2p - 1 micro-batches. It keeps as much memory as p
/// micro-batches of one stage in 1F1B. Source: Qi et al. 2024, "Pipeline parallelism with
/// controllable memory", ZB-V.
std::vector<Action> zero_bubble_v(const PipelineSize& size, int stage) {
  Plan plan(size);
  const int p = size.stages;
  // The order is built for at least 2p - 1 micro-batches; if there are fewer, it has holes.
  const int micros = std::max(2 * p - 1, size.micros);
  const auto whole = [&](int chunk) {
    plan.add(ActionKind::BackwardInputs, chunk);
    plan.add(ActionKind::BackwardWeights, chunk);
  };
  for (int i = 0; i < 2 * (p - stage) - 1; ++i)
    plan.add(ActionKind::Forward, 0);
  for (int i = 0; i < stage; ++i) {
    plan.add(ActionKind::Forward, 1);
    plan.add(ActionKind::Forward, 0);
  }
  for (int i = 0; i < p - stage; ++i) {
    plan.add(ActionKind::Forward, 1);
    whole(1);
  }
  while (plan.count(ActionKind::Forward, 1) < plan.count(ActionKind::Forward, 0) ||
         plan.count(ActionKind::Forward, 0) < micros) {
    if (plan.count(ActionKind::Forward, 0) < micros) plan.add(ActionKind::Forward, 0);
    whole(0);
    plan.add(ActionKind::Forward, 1);
    whole(1);
  }
  for (int i = 0; i < stage; ++i) {
    plan.add(ActionKind::BackwardInputs, 0);
    plan.add(ActionKind::BackwardInputs, 1);
  }
  for (int i = 0; i < p - stage; ++i) {
    plan.add(ActionKind::BackwardInputs, 0);
    plan.add(ActionKind::BackwardWeights, 0);
  }
  for (const int chunk : {1, 0}) {
    while (plan.count(ActionKind::BackwardWeights, chunk) <
           plan.count(ActionKind::BackwardInputs, chunk))
      plan.add(ActionKind::BackwardWeights, chunk);
  }
  return plan.take();
}

TESSERA_PIPELINE_SCHEDULE("gpipe", gpipe, {.computes = gpipe});
TESSERA_PIPELINE_SCHEDULE("1f1b", 1f1b, {.computes = one_forward_one_backward});
TESSERA_PIPELINE_SCHEDULE(
    "interleaved",
    interleaved,
    {.computes = interleaved, .least_chunks = 2, .most_chunks = 1 << 10, .full_round = true});
TESSERA_PIPELINE_SCHEDULE("zb-h1", h1, {.computes = zero_bubble_h1});
TESSERA_PIPELINE_SCHEDULE(
    "zb-v",
    v,
    {.computes = zero_bubble_v, .placement = Placement::Fold, .least_chunks = 2, .most_chunks = 2});

}  // namespace
}  // namespace tessera::parallel

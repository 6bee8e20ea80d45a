// SPDX-License-Identifier: Apache-2.0
// The memory and traffic of a step of a layout, and what a ZeRO stage promises about it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/comm/cost.h"
#include "tessera/comm/world.h"
#include "tessera/engine/launch.h"
#include "tessera/parallel/group_axes.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {

/// Costs of a training: memory of rank 0 from the ledger after a step, traffic of the second step.
struct Cost {
  memory::Usage first;  ///< at the initial weights, before any step
  memory::Usage usage;
  comm::Traffic traffic;
  std::vector<comm::Traffic> of_rank, messages;  ///< all that a rank moved, and what were messages
  std::int64_t in_groups = 0;  ///< elements of rank 0's inside of the groups that shard the weights
  std::int64_t peak = 0;
  /// Elements of the flat buffers with their padding: all, of the first block, of the last.
  double padded = 0, padded_first = 0, padded_last = 0;
  /// The part of padded_first and padded_last that stage 3 gathers.
  double sharded_first = 0, sharded_last = 0;
  double persistent = 0;  ///< elements that stage 3 leaves whole
  double largest = 0;     ///< elements of the largest block
};

/// `move`: puts the ranks into another world, such as one of two hosts.
inline Cost cost_of(
    const TinyRun& run,
    const Layout& layout,
    const std::function<std::unique_ptr<comm::World>(comm::World&)>& move = nullptr) {
  engine::prepare_process(1);
  const planner::Plan made = run.plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  Cost cost;
  cost.of_rank.resize(static_cast<std::size_t>(layout.ranks));
  cost.messages.resize(cost.of_rank.size());
  comm::run_threads(plan.mesh(), [&](comm::World& given) {
    at::set_num_threads(1);
    memory::Ledger ledger;
    const memory::ScopedLedger scoped(ledger);
    const std::unique_ptr<comm::World> moved = move ? move(given) : nullptr;
    comm::World& world = moved ? *moved : given;
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    engine.make_reference();
    if (world.is_leader()) cost.first = ledger.usage();
    engine.train_step();
    engine.finish();
    const comm::Traffic before = world.transport().traffic(),
                        before_in_messages = world.transport().messages();
    const comm::Group& shards = world.group(parallel::dense_axes().inner);
    const comm::Traffic before_in_groups = world.transport().traffic(shards);
    engine.train_step();
    engine.finish();
    const auto rank = static_cast<std::size_t>(world.rank());
    cost.of_rank[rank] = world.transport().traffic() - before;
    cost.messages[rank] = world.transport().messages() - before_in_messages;
    if (world.is_leader()) {
      cost.usage = ledger.usage();
      cost.peak = cost.usage.total_peak;
      parallel::ModelInstance& model = engine.model();
      for (const parallel::FlatGroup& group : model.groups()) {
        cost.padded += static_cast<double>(group.layout.numel());
        if (!group.weights->comes_and_goes())
          cost.persistent += static_cast<double>(group.layout.numel());
      }
      const auto padded_of = [&](int block, bool all = true) {
        double numel = 0;
        for (const int g : model.groups_of(block)) {
          const parallel::FlatGroup& group = model.groups()[static_cast<std::size_t>(g)];
          if (all || group.weights->comes_and_goes())
            numel += static_cast<double>(group.layout.numel());
        }
        return numel;
      };
      for (int b = 0; b < model.num_blocks(); ++b)
        cost.largest = std::max(cost.largest, padded_of(b));
      cost.padded_first = padded_of(0);
      cost.padded_last = padded_of(model.num_blocks() - 1);
      cost.sharded_first = padded_of(0, false);
      cost.sharded_last = padded_of(model.num_blocks() - 1, false);
      cost.traffic = cost.of_rank[rank];
      cost.in_groups = world.transport().traffic(shards).elements - before_in_groups.elements;
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  });
  return cost;
}

/// Elements that layers exchange in a step of rank 0, predicted from a run on meta tensors.
inline std::int64_t predicted_in_layers(const TinyRun& run, const Layout& layout) {
  const planner::Plan made = run.plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  std::int64_t elements = 0;
  for (const parallel::BlockWork& block : planner::predict_work(plan)) {
    for (const auto& [kind, work] : block)
      elements += comm::traffic_of(work.posted).elements;
  }
  return layout.accumulation * elements;
}

inline std::int64_t bytes(const Cost& cost, memory::Tag tag) {
  return cost.usage.current[static_cast<std::size_t>(tag)];
}
/// Sums and gradients in flight, which a plan counts together.
inline std::int64_t all_gradient_bytes(const Cost& cost) {
  return bytes(cost, memory::Tag::Gradients) + bytes(cost, memory::Tag::GradientsInFlight);
}

// gpt2-small with an untied vocabulary of 50,304 has 124.5M parameters and one tied table.
inline constexpr double kC = 768, kV = 50304, kT = 64;
inline constexpr double kLayer = 12 * kC * kC + 13 * kC;
inline constexpr double kParameters = 12 * kLayer + kV * kC + kT * kC + 2 * kC;
// Below the default persistence threshold of 100,000: norms, biases and the table of positions.
inline constexpr double kPersistent = 12 * 13 * kC + kT * kC + 2 * kC;

// Padding to whole chunks of 1024 elements for every rank, and small things of the step.
inline constexpr double kMemoryTolerance = 0.01;

// Ranks come to a collective in another order every time, and with them copies of small messages.
inline constexpr double kPeakNoise = 1e-3;

inline TinyRun gpt2_small() {
  TinyRun run;
  run.set("model",
          R"({"preset": "gpt2-small", "vocab_size": 50304, "max_positions": 64, "dropout": 0.0})")
      .set("data.sequence_length", "64")
      .set("bf16.enabled", "true");
  return run;
}

inline void expect_bytes(double expected, std::int64_t actual, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(actual), expected, kMemoryTolerance * expected) << what;
}

/// Checks that every stage keeps what it promises. Peaks fall from stage 0 to 1 and from 2 to 3,
/// and stage 2's is not above stage 1's: both shard the sums.
inline void expect_stages_keep_what_they_promise(int n) {
  const TinyRun run = gpt2_small();
  double last_peak = HUGE_VAL;
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage) + " on " + std::to_string(n) + " ranks");
    const Cost cost =
        cost_of(run, {.ranks = n, .accumulation = 1, .micro_batch = 1, .stage = stage});
    const double shards = stage == 0 ? 1 : n;
    const double weights =
        stage < 3 || n == 1 ? kParameters : (kParameters - kPersistent) / n + kPersistent;
    // Transients: two layers' gradients, and one of each other size; none on one rank.
    const double transient = n == 1 ? 0 : 2 * kLayer + kV * kC + kT * kC + 2 * kC;
    expect_bytes(2 * weights, bytes(cost, memory::Tag::Parameters), "working weights");
    expect_bytes(12 * kParameters / shards, bytes(cost, memory::Tag::Optimizer), "optimizer");
    // The embedding's few rows are added to the head's sum.
    expect_bytes(4 * kParameters / n, bytes(cost, memory::Tag::Gradients), "sums of gradients");
    expect_bytes(4 * transient, bytes(cost, memory::Tag::GradientsInFlight), "gradients in flight");
    // The table of docs/performance.md.
    const auto mib = [](std::int64_t count) { return static_cast<double>(count) / (1 << 20); };
    std::printf("| %d | %d | %.0f | %.0f | %.0f | %.0f | %.1f |\n",
                n,
                stage,
                mib(bytes(cost, memory::Tag::Parameters)),
                mib(bytes(cost, memory::Tag::Gradients)),
                mib(bytes(cost, memory::Tag::Optimizer)),
                mib(bytes(cost, memory::Tag::GradientsInFlight)),
                mib(cost.peak));
    if (n > 1) {
      const double peak = static_cast<double>(cost.peak);
      if (stage == 2) {
        EXPECT_LE(peak, last_peak * (1 + kPeakNoise));
      } else {
        EXPECT_LT(peak, last_peak * (1 - kPeakNoise));
      }
      last_peak = peak;
    }
  }
}

}  // namespace tessera::test

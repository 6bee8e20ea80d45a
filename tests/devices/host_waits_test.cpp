// SPDX-License-Identifier: Apache-2.0
// labels: slow
// A steady step on simulated GPUs makes the host wait only where it needs a number of the device.
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "devices/device_world.h"
#include "devices/fake_nccl.h"
#include "devices/simulated_gpu.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

using Keys = std::vector<std::pair<const char*, const char*>>;

struct WaitCase {
  const char* name;
  Layout layout;
  Keys keys = {};
  /// For each rank and step: one for the losses of all micro-batches, one for the sums of squares
  /// of the gradient, and others that docs/gpu.md lists.
  std::int64_t waits = 2;
};

class HostWaits : public ::testing::TestWithParam<WaitCase> {};

/// The waits of all ranks in a training of `steps` steps.
SimulatedWork work_of(const TinyRun& run, const Layout& layout, std::int64_t steps) {
  const SimulatedWork before = simulated_work();
  (void)run.train(layout, steps);
  SimulatedWork out = simulated_work();
  out.host_waits -= before.host_waits;
  out.pageable_copies -= before.pageable_copies;
  for (const auto& [what, count] : before.waits)
    out.waits[what] -= count;
  return out;
}

TEST_P(HostWaits, AreThoseOfTheNumbersThatTheHostNeeds) {
  TinyRun run;
  for (const auto& [key, value] : GetParam().keys)
    run.set(key, value);
  run.use_world([](comm::World& host) { return world_with_nccl(host, fake_nccl()); });
  const Layout& layout = GetParam().layout;

  SimulatedWork fewer = work_of(run, layout, 2);
  const SimulatedWork more = work_of(run, layout, 4);

  const std::int64_t rank_steps = 2 * layout.ranks;
  std::map<std::string, std::int64_t> each;
  for (const auto& [what, count] : more.waits)
    each[what] = count - fewer.waits[what];
  EXPECT_LE(more.host_waits - fewer.host_waits, GetParam().waits * rank_steps)
      << testing::PrintToString(each);
  EXPECT_EQ(more.pageable_copies, fewer.pageable_copies);
}

/// Flat buffers of the tiny model: its tied table, the embedding, two layers and the head.
constexpr std::int64_t kBuffers = 5;
const char* const kFp16 = R"({"enabled": true, "initial_scale_power": 4})";

INSTANTIATE_TEST_SUITE_P(
    Steps,
    HostWaits,
    ::testing::Values(
        WaitCase{"Plain", {}},
        WaitCase{"Accumulation", {.accumulation = 4}},
        WaitCase{"Dropout", {.accumulation = 2}, {{"model.dropout", "0.1"}}},
        WaitCase{"Stage0", {.ranks = 2, .stage = 0}},
        WaitCase{"Stage2", {.ranks = 2, .accumulation = 2, .stage = 2}},
        WaitCase{"Stage3",
                 {.ranks = 2, .accumulation = 2, .stage = 3},
                 {{"zero_optimization.stage3_param_persistence_threshold", "0"}}},
        WaitCase{"Bf16", {.ranks = 2, .stage = 2}, {{"bf16", R"({"enabled": true})"}}},
        // One more for the gradients that are not finite.
        WaitCase{"Fp16", {.ranks = 2, .accumulation = 2, .stage = 2}, {{"fp16", kFp16}}, 3},
        WaitCase{"Tensor", {.ranks = 2, .accumulation = 2, .tensor = 2}},
        WaitCase{"Pipeline", {.ranks = 2, .accumulation = 4, .pipeline = R"({"size": 2})"}},
        WaitCase{"Recompute", {}, {{"activation_checkpointing.granularity", "\"full\""}}},
        WaitCase{"Opt", {.accumulation = 2}, {{"model.family", "\"opt\""}}},
        // Activations on the host travel without a wait.
        WaitCase{"HostActivations",
                 {.accumulation = 2},
                 {{"run.device", "\"simulated\""},
                  {"activation_checkpointing",
                   R"({"granularity": "full", "offload": {"device": "cpu"}})"}}},
        // One more for each buffer of weights: its last copy to the device has ended before the
        // update writes it. The model has kBuffers.
        WaitCase{"HostWeights",
                 {.accumulation = 2, .stage = 3},
                 {{"run.device", "\"simulated\""},
                  {"zero_optimization.stage3_param_persistence_threshold", "0"},
                  {"zero_optimization.offload_param.device", "\"cpu\""}},
                 2 + kBuffers},
        // And one for each buffer of gradients, which the host reads.
        WaitCase{"HostBoth",
                 {.ranks = 2, .stage = 3},
                 {{"run.device", "\"simulated\""},
                  {"zero_optimization.stage3_param_persistence_threshold", "0"},
                  {"zero_optimization.offload_optimizer.device", "\"cpu\""},
                  {"zero_optimization.offload_param.device", "\"cpu\""}},
                 2 + 2 * kBuffers}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::test

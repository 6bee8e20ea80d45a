// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Adapters of a base in fewer bits train like those of the unpacked weights, on any number of
// ranks, and take as much memory as planned.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/memory/ledger.h"
#include "tessera/models/adapter.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/nf4.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {
namespace {

/// All layers, with dropout in the model and before the adapters.
TinyRun run_of(const std::string& base,
               const std::string& more = "",
               const std::string& type = "lora") {
  TinyRun run;
  return run.set("adapter",
                 R"({"type": ")" + type +
                     R"(", "r": 2, "alpha": 8, "dropout": 0.1, "quantize_base": ")" + base + "\"" +
                     more + "}");
}
const char* const kPlain = R"(, "double_quantization": false)";

at::Tensor round_trip(const ParamInfo& info, const at::Tensor& x, bool nf4) {
  if (!nf4) {
    const at::Tensor rows = x.view({-1, info.shape.back()});
    return ops::from_int8(ops::to_int8(rows), at::kFloat).view({-1});
  }
  const std::int64_t blocks = (x.numel() + 63) / 64;
  const at::Tensor codes = at::empty({blocks * 32}, at::kByte),
                   scales = at::empty({blocks}, at::kFloat), out = at::empty_like(x);
  ops::to_nf4(x, codes, scales);
  ops::from_nf4(codes, scales, out);
  return out;
}

/// The losses of `steps` steps on one rank, and the most bytes of parameters.
struct Trained {
  std::vector<double> losses;
  std::int64_t parameter_bytes = 0;
};
Trained train(const planner::Plan& made, std::int64_t steps) {
  engine::prepare_process(1);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  Trained out;
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    memory::Ledger ledger;
    const memory::ScopedLedger scoped(ledger);
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    while (engine.step() < steps)
      out.losses.push_back(engine.train_step().loss);
    out.parameter_bytes = ledger.usage().peak[static_cast<std::size_t>(memory::Tag::Parameters)];
    engine.finish();
  });
  return out;
}

TEST(QuantizedBase, IsTheModelOfItsDequantizedWeights) {
  for (const auto& [base, type] : std::vector<std::pair<std::string, std::string>>{
           {"nf4", "lora"}, {"int8", "lora"}, {"nf4", "dora"}, {"int8", "dora"}}) {
    SCOPED_TRACE(base + " " + type);
    const TinyRun quantized = run_of(base, base == "nf4" ? kPlain : "", type);
    const planner::Plan packed = quantized.plan({});
    TinyRun widened = quantized;
    widened.set("adapter.quantize_base", "\"none\"").set("adapter.double_quantization", "true");
    const planner::Plan unrounded = widened.plan({});
    planner::ModelPlan model = unrounded.model();
    const std::set<std::string> names = packed.model().adapter->quantized;
    EXPECT_EQ(names.size(), 2U * 4U) << "four matrices in each of two layers";
    model.weights = [source = model.weights, names, nf4 = base == "nf4"](
                        const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
      if (!names.contains(info.name)) return source(info, begin, end, out);
      const at::Tensor x = at::empty({info.numel()}, at::kFloat);
      source(info, 0, info.numel(), x.data_ptr<float>());
      const float* const wide = round_trip(info, x, nf4).contiguous().data_ptr<float>();
      std::copy(wide + begin, wide + end, out);
    };
    // Magnitudes are the norms of the rows of these weights.
    constexpr std::uint64_t kSeed = 5;
    model.weights = models::first_adapter_weights(*model.adapter, model.weights, kSeed);
    const planner::Plan plain = planner::with(unrounded, std::move(model));

    const Trained a = train(packed, 4), b = train(plain, 4), other = train(widened.plan({}), 4);

    EXPECT_EQ(a.losses, b.losses);
    EXPECT_NE(a.losses, other.losses) << "the base is not that of full precision";
    EXPECT_NEAR(a.losses[0], other.losses[0], 0.05 * other.losses[0]);
  }
}

TEST(QuantizedBase, RanksTimesAccumulationGiveTheSameBits) {
  for (const auto& [base, type] : std::vector<std::pair<std::string, std::string>>{
           {"nf4", "lora"}, {"int8", "lora"}, {"nf4", "dora"}}) {
    const TinyRun run = run_of(base, "", type);
    const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4);
    for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 0},
                                                    {.ranks = 4, .accumulation = 1, .stage = 2},
                                                    {.ranks = 4, .accumulation = 1, .stage = 3}}) {
      SCOPED_TRACE(base + " " + type + " " + text_of(layout));
      expect_same_bits(one, run.train(layout, 4));
    }
  }
}

TEST(QuantizedBase, GivesTheSameBitsIn16BitsAndThroughAPipeline) {
  for (const char* type : {"bf16.enabled", "fp16.enabled"}) {
    TinyRun run = run_of("nf4");
    run.set(type, "true");
    const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 3);
    expect_same_bits(one, run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 3));
    const Trace stages = run.train({.ranks = 2, .accumulation = 4, .pipeline = "2"}, 3);
    EXPECT_EQ(stages.losses, one.losses);
    EXPECT_EQ(stages.grad_norms, one.grad_norms);
  }
}

TEST(QuantizedBase, RecomputeChangesNothing) {
  for (const char* kind : {"full", "selective"}) {
    TinyRun run = run_of("nf4");
    const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 2};
    const Trace stored = run.train(layout, 3);
    run.set("activation_checkpointing.granularity", std::string("\"") + kind + "\"");

    expect_same_bits(stored, run.train(layout, 3));
  }
}

TEST(QuantizedBase, IsSharedByRanksAsItIsOnOne) {
  const auto wide = [](const char* base, const char* more) {
    TinyRun run;
    run.set("model.hidden_size", "128")
        .set("model.num_heads", "4")
        .set("adapter",
             std::string(R"({"type": "lora", "r": 2, "quantize_base": ")") + base + "\"" + more +
                 "}");
    return run;
  };
  expect_same(wide("nf4", kPlain),
              {{.ranks = 2, .tensor = 2},
               {.ranks = 2, .tensor = 2, .sequence = true},
               {.ranks = 2, .context = 2}});
  // Scales that depend on what other ranks hold: of rows, and of the scales of a whole matrix.
  for (const char* base : {"nf4", "int8"}) {
    SCOPED_TRACE(base);
    expect_same(wide(base, ""), {{.ranks = 2, .tensor = 2}, {.ranks = 4, .stage = 3, .tensor = 2}});
  }
}

TEST(QuantizedBase, IsRefusedWhereABlockOfNf4WouldBeOfTwoRanks) {
  const TinyRun run = run_of("nf4");
  EXPECT_THROW((void)run.train({.ranks = 2, .tensor = 2}, 1), Error);
}

TEST(QuantizedBase, ContinuesToTheBit) {
  const TinyRun run = run_of("nf4");
  const Trace whole = run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 4);
  const files::TempDir half;
  (void)run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 2, half.path());

  const Trace rest = run.train(
      {.ranks = 1, .accumulation = 4, .stage = 0}, 4, {}, *checkpoint::newest(half.path()));

  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
  EXPECT_EQ(rest.digest, whole.digest);
}

TEST(QuantizedBase, TakesTheMemoryThatIsPlanned) {
  std::int64_t full = 0;
  for (const char* base : {"none", "int8", "nf4"}) {
    SCOPED_TRACE(base);
    TinyRun run = run_of(base);
    run.set("model.hidden_size", "256").set("model.num_layers", "8").set("model.num_heads", "4");
    const planner::Plan plan = run.plan({});

    const std::int64_t planned = planner::estimate_memory(plan).parameters;
    const std::int64_t used = train(plan, 1).parameter_bytes;

    EXPECT_LE(used, planned * 1.02);
    EXPECT_GE(used, planned * 0.95);
    if (full == 0) full = used;
    // One of eight blocks in fp32, and all of them in four or eight bits instead of 32.
    EXPECT_LE(used,
              full * (base == std::string("nf4")    ? 0.32
                      : base == std::string("int8") ? 0.45
                                                    : 1.0));
  }
}

}  // namespace
}  // namespace tessera::test

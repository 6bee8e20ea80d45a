// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Which blocks a rank of a pipeline constructs, counted in their constructors.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/comm/world.h"
#include "tessera/nn/functional.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/parallel/pipeline/stage_link.h"

namespace tessera::parallel {
namespace {

using enum LogicalAxis;

constexpr std::int64_t kWidth = 4, kVocab = 12, kSamples = 2, kTokens = 3;
constexpr int kMicros = 2;

using Names = std::vector<std::string>;

/// Blocks of one thread, which is one rank.
struct Census {
  Names made;
  int alive = 0, most_alive = 0;
};
thread_local Census census;

class Counted {
 public:
  explicit Counted(const std::string& name) {
    census.made.push_back(name);
    census.most_alive = std::max(census.most_alive, ++census.alive);
  }
  ~Counted() { --census.alive; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

class Table final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    table_ = params.tied("table", {kVocab, kWidth}, {Vocab, Embed}, Init::normal(0.1));
  }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    return {.flow = {.diff = {nn::embedding(batch.tensor("input_ids"), *table_, context)}}};
  }

 private:
  Counted counted_{"table"};
  Param* table_ = nullptr;
};

class Layer final : public nn::Block {
 public:
  explicit Layer(const std::string& name) : counted_(name) {}
  void declare(nn::Params& params) override {
    weight_ = params.add("weight", {kWidth, kWidth}, {Embed, Embed}, Init::normal(0.2));
  }
  nn::Outcome forward(nn::Flow in,
                      const nn::Batch& /*batch*/,
                      nn::StepContext& /*context*/) override {
    const at::Tensor& x_BTC = in.diff.at(0);
    return {.flow = {.diff = {x_BTC + at::tanh(at::matmul(x_BTC, weight_->tensor()))}}};
  }

 private:
  Counted counted_;
  Param* weight_ = nullptr;
};

class Loss final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    table_ = params.tied("table", {kVocab, kWidth}, {Vocab, Embed}, Init::normal(0.1));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    return {.terms = {
                {.name = "loss",
                 .sum = nn::vocab_loss(in.diff.at(0), *table_, batch.tensor("labels"), 0.0, context)
                            .sum}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.tensor("labels").numel())};
  }

 private:
  Counted counted_{"loss"};
  Param* table_ = nullptr;
};

/// Eight blocks; the table belongs to the first and to the last.
nn::Model counted_model() {
  nn::Model model;
  model.blocks.push_back({"table", [] { return std::make_unique<Table>(); }});
  for (int layer = 0; layer < 6; ++layer) {
    const std::string name = "own." + std::to_string(layer);
    model.blocks.push_back({name, [name] { return std::make_unique<Layer>(name); }});
  }
  model.blocks.push_back({"loss", [] { return std::make_unique<Loss>(); }});
  return model;
}

struct Case {
  std::string schedule;
  StageLayout layout;
  std::vector<Names> own;      ///< blocks of each stage
  std::vector<int> looked_at;  ///< blocks before the last part that a stage is sent
};

std::vector<Case> cases() {
  return {
      {"1f1b",
       {.stages = 2, .bounds = {0, 3, 8}},
       {{"table", "own.0", "own.1"}, {"own.2", "own.3", "own.4", "own.5", "loss"}},
       {0, 3}},
      {"interleaved",
       {.stages = 2, .chunks = 2, .bounds = {0, 2, 4, 6, 8}},
       {{"table", "own.0", "own.3", "own.4"}, {"own.1", "own.2", "own.5", "loss"}},
       {4, 6}},
      {"zb-v",
       {.stages = 2, .chunks = 2, .placement = Placement::Fold, .bounds = {0, 2, 4, 6, 8}},
       {{"table", "own.0", "own.5", "loss"}, {"own.1", "own.2", "own.3", "own.4"}},
       {6, 2}},
  };
}

mesh::Mesh two_stages() {
  return mesh::Mesh({.pp = 2});
}

/// The blocks that each rank constructed until its model was ready, and those that it had then.
std::vector<Census> build(const nn::Model& model, const Case& of) {
  std::vector<Census> out(2);
  comm::run_threads(two_stages(), [&](comm::World& world) {
    census = {};
    ModelInstance instance(model, {}, world, of.layout);
    const auto stage = static_cast<std::size_t>(instance.stage());
    out[stage] = census;
    const Names& own = of.own[stage];
    EXPECT_EQ(instance.objective() != nullptr, own.back() == "loss");
    // The table once, where a stage has it, and its layers; but names and sizes of all of them.
    const bool has_table = own.front() == "table" || own.back() == "loss";
    const auto layers = std::count_if(
        own.begin(), own.end(), [](const std::string& name) { return name.starts_with("own"); });
    std::int64_t elements = 0;
    for (const FlatGroup& group : instance.groups()) {
      for (const Segment& segment : group.layout.segments())
        elements += segment.numel;
    }
    EXPECT_EQ(elements, (has_table ? kVocab * kWidth : 0) + layers * kWidth * kWidth);
    EXPECT_EQ(instance.num_parameters(), kVocab * kWidth + 6 * kWidth * kWidth);
  });
  return out;
}

TEST(StageBlocks, AreAllThatARankMakesOfADeclaredModel) {
  nn::Model model = counted_model();
  nn::declare_all(model);

  for (const Case& of : cases()) {
    SCOPED_TRACE(of.schedule);
    const std::vector<Census> ranks = build(model, of);
    for (std::size_t stage = 0; stage < ranks.size(); ++stage) {
      SCOPED_TRACE(stage);
      EXPECT_EQ(ranks[stage].made, of.own[stage]);
      EXPECT_EQ(ranks[stage].alive, static_cast<int>(of.own[stage].size()));
    }
  }
}

TEST(StageBlocks, AreAllThatARankKeepsOfAModelThatNobodyHasLookedAt) {
  for (const Case& of : cases()) {
    SCOPED_TRACE(of.schedule);
    const std::vector<Census> ranks = build(counted_model(), of);
    for (std::size_t stage = 0; stage < ranks.size(); ++stage) {
      SCOPED_TRACE(stage);
      const auto own = static_cast<int>(of.own[stage].size());
      EXPECT_EQ(ranks[stage].made.size(), 8U);
      EXPECT_EQ(ranks[stage].alive, own);
      EXPECT_LE(ranks[stage].most_alive, own + 1);
    }
  }
}

nn::Batch batch_of(int micro) {
  nn::Batch batch;
  const at::Tensor ids = at::arange(kSamples * kTokens, at::kLong).view({kSamples, kTokens});
  batch.set("input_ids", ids + micro);
  batch.set("labels", ids + 2 * micro);
  batch.sample_ids = {2 * micro, 2 * micro + 1};
  return batch;
}

/// Shapes of flows need the blocks before: one at a time, once a shape, gone when it is known.
TEST(StageBlocks, AreAllThatARankKeepsWhenItHasAskedForTheShapesOfFlows) {
  nn::Model model = counted_model();
  nn::declare_all(model);
  for (const Case& of : cases()) {
    SCOPED_TRACE(of.schedule);
    comm::run_threads(two_stages(), [&](comm::World& world) {
      at::set_num_threads(1);
      census = {};
      ModelInstance instance(model, {}, world, of.layout);
      StageLink link(world, model, of.layout, DType::F32);
      GradientReduction reduction(world, instance, {.stage = 0, .max_micros = kMicros});
      Executor executor(instance, {&reduction}, {}, &link);
      const auto stage = static_cast<std::size_t>(instance.stage());
      const auto own = static_cast<int>(of.own[stage].size());

      executor.train(
          pipeline_actions(
              pipeline_schedules().get(of.schedule),
              {.stages = of.layout.stages, .chunks = of.layout.chunks, .micros = kMicros},
              instance.stage()),
          {.num_micros = kMicros, .load = batch_of, .global_denominators = [](const auto& counts) {
             return counts.at(0);
           }});
      reduction.finish();

      EXPECT_EQ(census.made.size(), static_cast<std::size_t>(own + of.looked_at[stage]));
      EXPECT_EQ(census.alive, own);
      EXPECT_LE(census.most_alive, own + 1);
      world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
    });
  }
}

}  // namespace
}  // namespace tessera::parallel

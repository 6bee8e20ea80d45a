// SPDX-License-Identifier: Apache-2.0
// Memory of passes, found without running them.
#include "tessera/parallel/activation_probe.h"

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/models/gpt2.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/step_context.h"
#include "tessera/parallel/pipeline/schedule.h"

namespace tessera::parallel {
namespace {

using testing::HasSubstr;

// B samples of N numbers in fp32.
constexpr std::int64_t kB = 8, kN = 64, kFlow = kB * kN * 4;

/// Passes the numbers of the batch on.
class First final : public nn::Block {
  void declare(nn::Params&) override {}
  nn::Outcome forward(nn::Flow, const nn::Batch& batch, nn::StepContext&) override {
    nn::Outcome out;
    out.flow.diff = {batch.tensor("x")};
    return out;
  }
};

int tanhs_run = 0;

/// x -> tanh(x), whose backward needs only the result.
class Tanh final : public nn::Block {
  void declare(nn::Params&) override {}
  nn::Outcome forward(nn::Flow in, const nn::Batch&, nn::StepContext&) override {
    ++tanhs_run;
    nn::Outcome out;
    out.flow.diff = {in.diff[0].tanh()};
    return out;
  }
};

/// x -> x / 2, whose gradient is a tensor of x's size whatever comes.
class Half final : public nn::Block {
  void declare(nn::Params&) override {}
  nn::Outcome forward(nn::Flow in, const nn::Batch&, nn::StepContext&) override {
    nn::Outcome out;
    out.flow.diff = {in.diff[0] * 0.5};
    return out;
  }
};

class Sum final : public nn::Objective {
  void declare(nn::Params&) override {}
  nn::Outcome forward(nn::Flow in, const nn::Batch&, nn::StepContext&) override {
    nn::Outcome out;
    out.terms = {{"loss", in.diff[0].sum()}};
    return out;
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {batch.tensor("x").sum().item<double>()};  // has no value on the meta device
  }
};

template <class B>
nn::BlockSpec spec(const std::string& name) {
  return {name, [] { return std::make_unique<B>(); }};
}

ProbedModel tanhs(int count) {
  ProbedModel out;
  out.model.blocks.push_back(spec<First>("first"));
  for (int i = 0; i < count; ++i)
    out.model.blocks.push_back(spec<Tanh>("tanh." + std::to_string(i)));
  out.model.blocks.push_back(spec<Sum>("sum"));
  out.batch.set("x", at::empty({kB, kN}, at::TensorOptions().dtype(at::kFloat).device(at::kMeta)));
  for (std::int64_t i = 0; i < kB; ++i)
    out.batch.sample_ids.push_back(i);
  return out;
}

TEST(ActivationProbe, CountsWhatPassesKeepAndNeed) {
  const auto blocks = probe_training(tanhs(3), false, false, false);

  ASSERT_EQ(blocks.size(), 5U);
  // The last one's gradient is the number 1 for each element, in four bytes.
  const BlockBytes& tanh = blocks[2];
  EXPECT_EQ(tanh.flow, kFlow);
  EXPECT_EQ(tanh.gradient, kFlow);
  EXPECT_EQ(tanh.passes.at(ActionKind::Forward), (PassBytes{kFlow, kFlow}));
  // The result and the incoming gradient are freed, the returned gradient stays.
  EXPECT_EQ(tanh.passes.at(ActionKind::Backward), (PassBytes{-kFlow, kFlow}));
  // The batch's own memory is not counted.
  EXPECT_EQ(blocks[0].passes.at(ActionKind::Forward), (PassBytes{0, 0}));
}

TEST(ActivationProbe, RunsThreeOfAHundredLikeBlocks) {
  ProbedModel model = tanhs(100);
  model.model.blocks.insert(model.model.blocks.end() - 1, spec<Half>("half"));
  tanhs_run = 0;
  const auto blocks = probe_training(model, false, false, false);

  EXPECT_EQ(blocks.size(), 103U);
  EXPECT_EQ(blocks[90].passes.at(ActionKind::Forward), (PassBytes{kFlow, kFlow}));
  EXPECT_EQ(tanhs_run, 3);
}

models::Gpt2Shape small() {
  models::Gpt2Shape shape;
  shape.num_layers = 7;
  shape.hidden_size = 32;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 128;
  shape.vocab_size = 96;
  shape.max_positions = 16;
  return shape;
}

ProbedModel gpt2() {
  ProbedModel out;
  out.model = models::gpt2(small());
  for (const char* name : {"input_ids", "labels"})
    out.batch.set(name, at::empty({2, 16}, at::TensorOptions().dtype(at::kLong).device(at::kMeta)));
  out.batch.sample_ids = {0, 1};
  return out;
}

TEST(ActivationProbe, OfLikeLayersIsWhatEachOfThemNeeds) {
  ProbedModel model = gpt2();
  const auto some = probe_training(model, false, false, false);
  // A frozen parameter makes a layer a different one: here in every second layer.
  const auto layer_frozen = [](const std::string& name) {
    return name.starts_with("h.") && name.ends_with("ln_1.bias") && (name[2] - '0') % 2 == 1;
  };
  model.weights.frozen = layer_frozen;
  const auto all = probe_training(model, false, false, false);

  ASSERT_EQ(some.size(), all.size());
  for (const std::size_t b : {2U, 4U, 6U}) {
    EXPECT_EQ(some[b].passes.at(ActionKind::Forward), all[b].passes.at(ActionKind::Forward)) << b;
    EXPECT_EQ(some[b].flow, all[b].flow) << b;
  }
}

TEST(ActivationProbe, OfSelectiveAndFullRecomputationKeepsLess) {
  const auto kept = [](bool again, bool regions) {
    return probe_training(gpt2(), again, regions, false)[3].passes.at(ActionKind::Forward).change;
  };
  EXPECT_LT(kept(false, true), kept(false, false));
  EXPECT_LT(kept(true, false), kept(false, true));
}

TEST(ActivationProbe, OfHalvedBackwardsEndsWhereWholeOnesDo) {
  const auto whole = probe_training(gpt2(), false, false, false);
  const auto halves = probe_training(gpt2(), false, false, true);
  std::int64_t all = 0, both = 0;
  for (std::size_t b = 0; b < whole.size(); ++b) {
    for (const auto& [kind, pass] : whole[b].passes)
      all += pass.change;
    for (const auto& [kind, pass] : halves[b].passes)
      both += pass.change;
  }
  EXPECT_EQ(all, 0);
  EXPECT_EQ(both, 0);
}

/// Looks at a value.
class Looks final : public nn::Block {
  void declare(nn::Params&) override {}
  nn::Outcome forward(nn::Flow in, const nn::Batch&, nn::StepContext&) override {
    if (in.diff[0].sum().item<double>() > 0) return {};
    nn::Outcome out;
    out.flow = std::move(in);
    return out;
  }
};

TEST(ActivationProbe, NamesABlockThatLooksAtValues) {
  ProbedModel model = tanhs(1);
  model.model.blocks[1] = spec<Looks>("looks");
  try {
    probe_training(model, false, false, false);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("looks"));
  }
}

ProbedModel large_gpt2() {
  ProbedModel out = gpt2();
  for (const char* name : {"input_ids", "labels"}) {
    out.batch.set(name,
                  at::empty({512, 16}, at::TensorOptions().dtype(at::kLong).device(at::kMeta)));
  }
  out.batch.sample_ids.assign(512, 0);
  out.threads = 4;
  return out;
}

std::ptrdiff_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

/// Exits with 0 if a process forked from this one ends its first parallel region.
[[noreturn]] void exit_by_parallel_child() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // it hangs where the parent's threads are waited for
    at::set_num_threads(4);
    std::atomic<int> done = 0;
    at::parallel_for(0, 4, 1, [&](std::int64_t begin, std::int64_t end) {
      done += static_cast<int>(end - begin);
    });
    _exit(done == 4 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
}

// In a separate process, because other tests have started threads in this one.
TEST(ActivationProbe, StartsNoThreadAndLeavesTheProcessFitToFork) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        if (threads_of_process() != 1) _exit(3);
        probe_training(large_gpt2(), true, true, false);
        probe_inference(large_gpt2());
        if (threads_of_process() != 1) _exit(4);
        exit_by_parallel_child();
      },
      testing::ExitedWithCode(0),
      "");
}

TEST(ActivationProbe, CountsTheScratchOfEachThread) {
  const auto peak = [](int threads) {
    ProbedModel model = gpt2();
    model.threads = threads;
    return probe_training(model, false, false, false)[3].passes.at(ActionKind::Backward).peak;
  };
  // The peak of a pass with many threads is that of attention, where each thread has as much.
  EXPECT_GT(peak(64), peak(32));
  EXPECT_EQ(peak(96) - peak(64), peak(64) - peak(32));
}

TEST(ActivationProbe, OfInferenceDoesNotDependOnTheNumberOfLayers) {
  ProbedModel model = gpt2();
  const std::int64_t seven = probe_inference(model);
  models::Gpt2Shape shape = small();
  shape.num_layers = 3;
  model.model = models::gpt2(shape);
  EXPECT_EQ(probe_inference(model), seven);
  EXPECT_GT(seven, 0);
}

TEST(MostActivations, OfAStepAddsUpItsBlocks) {
  const auto blocks = probe_training(tanhs(5), false, false, false);
  const auto most = [&](int micros) {
    return most_activations(accumulation_schedule(micros), {}, 0, blocks, /*batch=*/100);
  };
  // Five results and the gradient that the last block returns, computed from one number for all
  // elements. Each block before it has one result less, and receives a whole gradient.
  EXPECT_EQ(most(1), 6 * kFlow + 4 + 100);
  // All micro-batches are loaded first, and each is freed when it has run.
  EXPECT_EQ(most(3), 6 * kFlow + 4 + 300);
}

TEST(MostActivations, OfAPipelineFollowItsSchedule) {
  const auto blocks = probe_training(tanhs(6), false, false, false);  // 8 with both ends
  StageLayout layout;
  layout.stages = 2;
  layout.bounds = {0, 4, 8};
  const auto most = [&](const char* name, int stage) {
    const PipelineSchedule& schedule = pipeline_schedules().get(name);
    return most_activations(
        pipeline_actions(schedule, {2, 1, 4}, stage), layout, stage, blocks, /*batch=*/0);
  };
  // The first stage keeps two micro-batches of three blocks in 1f1b, and all four in gpipe, plus
  // the incoming gradient, the next one, which is received meanwhile, and the one that it computes.
  EXPECT_EQ(most("1f1b", 0), (2 * 3 + 3) * kFlow);
  EXPECT_EQ(most("gpipe", 0), (4 * 3 + 3) * kFlow);
  // The last one holds what came too; the sum's gradient is one number.
  // The next one comes meanwhile.
  EXPECT_EQ(most("1f1b", 1), (1 + 3 + 1 + 1) * kFlow + 4);
}

TEST(MostActivations, SumsOfGradientsTakeTheMemoryThatBackwardFrees) {
  const auto blocks = probe_training(tanhs(5), false, false, false);
  const auto most = [&](int micros, const std::vector<std::int64_t>& sums) {
    return most_activations(accumulation_schedule(micros), {}, 0, blocks, /*batch=*/0, sums);
  };
  const std::int64_t alone = most(1, {});
  const std::vector<std::int64_t> none(blocks.size(), 0);
  EXPECT_EQ(most(1, none), alone);
  // The last block's sum exists when the first pass backward begins, the first block's when all
  // activations but its own are freed.
  std::vector<std::int64_t> last = none, first = none;
  last.back() = first.front() = kFlow;
  EXPECT_EQ(most(1, last), alone + kFlow);
  EXPECT_EQ(most(1, first), alone);
  EXPECT_EQ(most(2, first), most(2, none) + kFlow) << "the second micro-batch finds it";
}

}  // namespace
}  // namespace tessera::parallel

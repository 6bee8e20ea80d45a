// SPDX-License-Identifier: Apache-2.0
// labels: fast
// The order of events on the stages of a pipeline: receives are posted before their data is needed.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/recording.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/comm/transports/threads.h"
#include "tessera/comm/world.h"
#include "tessera/models/gpt2.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/parallel/pipeline/stage_link.h"

namespace tessera::parallel {
namespace {

using test::Log;

constexpr int kStages = 2, kMicros = 4, kBlocks = 6;

nn::Model model_of_six_blocks() {
  models::Gpt2Shape shape;
  shape.num_layers = kBlocks - 2;
  shape.hidden_size = 32;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 64;
  shape.vocab_size = 64;
  shape.max_positions = 8;
  shape.tie_embeddings = false;
  return models::gpt2(shape);
}

nn::Batch batch_of(int micro) {
  nn::Batch batch;
  batch.set("input_ids", at::arange(16, at::kLong).view({2, 8}));
  batch.set("labels", at::arange(16, at::kLong).view({2, 8}) + micro);
  batch.sample_ids = {2 * micro, 2 * micro + 1};
  return batch;
}

StageLayout layout_of(const std::string& schedule) {
  const PipelineSchedule& of = pipeline_schedules().get(schedule);
  StageLayout out{.stages = kStages, .chunks = of.least_chunks, .placement = of.placement};
  out.bounds =
      out.chunks == 1 ? std::vector<int>{0, 3, kBlocks} : std::vector<int>{0, 2, 3, 4, kBlocks};
  return out;
}

std::vector<Action> actions_of(const std::string& schedule, int stage) {
  return pipeline_actions(
      pipeline_schedules().get(schedule),
      {.stages = kStages, .chunks = layout_of(schedule).chunks, .micros = kMicros},
      stage);
}

/// Called at the points that the names say, by the stage's thread.
struct Hooks {
  std::function<void(int stage, int micro)> load = [](int, int) {};
  std::function<void(int stage, const Action&)> run = [](int, const Action&) {};
};

class Hooked final : public Policy {
 public:
  Hooked(int stage, const Hooks& hooks) : stage_(stage), hooks_(hooks) {}
  void before(const Action& action, const BlockRun& /*run*/) override {
    hooks_.run(stage_, action);
  }

 private:
  int stage_;
  const Hooks& hooks_;
};

void run_stage(comm::World& world, const std::string& schedule, const Hooks& hooks, Log& log) {
  at::set_num_threads(1);
  const nn::Model blocks = model_of_six_blocks();
  const StageLayout layout = layout_of(schedule);
  ModelInstance model(blocks, {}, world, layout);
  StageLink link(world, blocks, layout, DType::F32);
  GradientReduction reduction(world, model, {.stage = 0, .max_micros = kMicros});
  const int stage = model.stage();
  Hooked hooked(stage, hooks);
  test::RunRecorder ends(model, false, log), begins(model, true, log);
  Executor executor(model, {&ends, &hooked, &reduction, &begins}, {}, &link);
  executor.train(actions_of(schedule, stage),
                 {.num_micros = kMicros,
                  .load =
                      [&](int micro) {
                        hooks.load(stage, micro);
                        return batch_of(micro);
                      },
                  .global_denominators = [](const auto& counts) { return counts.at(0); }});
  reduction.finish();
  world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
}

/// One step: what happened on each stage.
std::vector<Log> run_stages(const std::string& schedule, const Hooks& hooks = {}) {
  const auto control = comm::private_control_page(kStages);
  auto transports = comm::make_threads_transports(control.get());
  std::vector<Log> logs(kStages);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < logs.size(); ++rank) {
    threads.emplace_back([&, rank] {
      comm::World world(
          static_cast<int>(rank),
          mesh::Mesh({.pp = kStages}),
          std::make_unique<test::RecordingTransport>(std::move(transports[rank]), logs[rank]),
          control);
      try {
        run_stage(world, schedule, hooks, logs[rank]);
      } catch (const Error& error) {
        ADD_FAILURE() << error.text();
        world.transport().abort(error);
      }
    });
  }
  threads.clear();
  return logs;
}

/// Walks through a stage's list of actions and finds their events in the log, each event once.
class Walk {
 public:
  Walk(const std::string& schedule, int stage, const Log& log)
      : stage_(stage), layout_(layout_of(schedule)), log_(log) {
    const nn::Model model = model_of_six_blocks();
    for (const nn::BlockSpec& spec : model.blocks)
      names_.push_back(spec.name);
  }

  struct Span {
    std::size_t begin, end;
  };
  Span pass(const Action& action) {
    auto [first, last] = layout_.blocks(stage_, action.chunk, kBlocks);
    --last;
    if (is_backward(action.kind)) std::swap(first, last);
    return {next("begin " + run(action, first)), next("end " + run(action, last))};
  }
  /// Posted, and waited for.
  Span receive(const Action& action) {
    const int part = layout_.part(stage_, action.chunk);
    const std::string what = action.kind == ActionKind::ReceiveFlow
                                 ? "receive flow into part " + std::to_string(part)
                                 : "receive gradient out of part " + std::to_string(part + 1);
    return {next("post " + what), next("wait for " + what)};
  }

 private:
  [[nodiscard]] std::string run(const Action& action, int block) const {
    return test::text_of_run(action, names_[static_cast<std::size_t>(block)]);
  }
  std::size_t next(const std::string& event) {
    auto [from, added] = found_.try_emplace(event, 0);
    const auto begin = log_.begin() + static_cast<std::ptrdiff_t>(from->second);
    const auto at = static_cast<std::size_t>(std::find(begin, log_.end(), event) - log_.begin());
    EXPECT_LT(at, log_.size()) << event << " is not there";
    from->second = std::min(at + 1, log_.size());
    return at;
  }

  int stage_;
  StageLayout layout_;
  const Log& log_;
  std::vector<std::string> names_;
  std::map<std::string, std::size_t> found_;  ///< position after the last one found
};

/// Receives of a stage that were under way while the pass in front of the one that needs them ran.
int receives_ahead(const std::string& schedule, int stage, const Log& log) {
  Walk walk(schedule, stage, log);
  const std::vector<Action> actions = actions_of(schedule, stage);
  int ahead = 0;
  const Action* before = nullptr;
  Walk::Span ran{};
  for (const Action& action : actions) {
    if (is_pass(action.kind)) {
      before = &action;
      ran = walk.pass(action);
    } else if (action.kind == ActionKind::ReceiveFlow ||
               action.kind == ActionKind::ReceiveGradient) {
      const Walk::Span received = walk.receive(action);
      if (before == nullptr) continue;
      // The shape of a gradient is known when its forward has run.
      const bool just_made = action.kind == ActionKind::ReceiveGradient &&
                             before->kind == ActionKind::Forward && before->chunk == action.chunk &&
                             before->micro == action.micro;
      if (just_made) continue;
      EXPECT_LT(received.begin, ran.begin) << "chunk " << action.chunk << ", " << action.micro;
      EXPECT_GT(received.end, ran.end) << "chunk " << action.chunk << ", " << action.micro;
      ++ahead;
    }
  }
  return ahead;
}

TEST(StageOverlap, WhatAPassNeedsIsOnItsWayWhileThePassBeforeItRuns) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    SCOPED_TRACE(schedule);
    const std::vector<Log> logs = run_stages(schedule);
    for (int stage = 0; stage < kStages; ++stage) {
      SCOPED_TRACE(stage);
      // All of them, but the very first of a stage.
      EXPECT_GE(receives_ahead(schedule, stage, logs[static_cast<std::size_t>(stage)]),
                kMicros - 1);
    }
  }
}

/// The second stage does not even have its samples until the first one is in its second pass.
TEST(StageOverlap, ASendWaitsForNobody) {
  constexpr std::chrono::seconds kPatience{60};
  std::promise<void> promise;
  std::future<void> in_second_pass = promise.get_future();
  bool told = false;
  Hooks hooks;
  hooks.load = [&](int stage, int micro) {
    if (stage != 1 || micro != 0) return;
    EXPECT_EQ(in_second_pass.wait_for(kPatience), std::future_status::ready);
  };
  hooks.run = [&](int stage, const Action& action) {
    if (stage == 0 && action.kind == ActionKind::Forward && action.micro == 1 &&
        !std::exchange(told, true))
      promise.set_value();
  };

  const Log log = run_stages("1f1b", hooks).front();

  const auto at = [&](const std::string& event) {
    return std::find(log.begin(), log.end(), event) - log.begin();
  };
  const auto second_pass = at("begin forward h.0 micro-batch 1");
  EXPECT_LT(at("post send flow into part 1"), second_pass);
  EXPECT_LT(second_pass, static_cast<std::ptrdiff_t>(log.size()));
}

}  // namespace
}  // namespace tessera::parallel

// SPDX-License-Identifier: Apache-2.0
// labels: fast
// The order of events of a step: which communication is under way while a block runs.
#include <algorithm>
#include <cstdint>
#include <exception>
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
#include "tessera/parallel/weight_gather.h"

namespace tessera::parallel {
namespace {

using test::Log;
using test::RecordingTransport;
using test::RunRecorder;

struct Setting {
  int micros = 1;
  Residency residency = Residency::Sharded;
  GatherOptions gather = {};
  ReductionOptions reduction = {};
};

nn::Model model_of_four_layers() {
  models::Gpt2Shape shape;
  shape.num_layers = 4;
  shape.hidden_size = 32;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 64;
  shape.vocab_size = 64;
  shape.max_positions = 8;
  shape.tie_embeddings = false;
  return models::gpt2(shape);
}

nn::Batch batch_of(int rank, int micro) {
  nn::Batch batch;
  batch.set("input_ids", at::arange(16, at::kLong).view({2, 8}) + rank);
  batch.set("labels", at::arange(16, at::kLong).view({2, 8}) + micro);
  batch.sample_ids = {2 * rank, 2 * rank + 1};
  return batch;
}

/// One step of a rank: what happened, and the names of the blocks.
void run_step(comm::World& world,
              const Setting& setting,
              Log& log,
              std::vector<std::string>& blocks) {
  at::set_num_threads(1);
  ModelInstance model(model_of_four_layers(), {.residency = setting.residency}, world);
  WeightGather gather(model, setting.gather);
  ReductionOptions options = setting.reduction;
  options.max_micros = setting.micros;
  GradientReduction reduction(world, model, options);
  RunRecorder ends(model, false, log), begins(model, true, log);
  Executor executor(model, {&ends, &gather, &reduction, &begins});
  const StepInput input{.num_micros = setting.micros,
                        .load = [&](int micro) { return batch_of(world.rank(), micro); },
                        .global_denominators = [](const auto& counts) { return counts.at(0); }};
  executor.train(accumulation_schedule(setting.micros), input);
  reduction.finish();
  if (world.is_leader()) {
    for (int b = 0; b < model.num_blocks(); ++b)
      blocks.push_back(model.name(b));
  }
  world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
}

/// Events on rank 0 of two.
struct Events {
  Log log;
  std::vector<std::string> blocks;

  explicit Events(const Setting& setting) {
    constexpr std::size_t kRanks = 2;
    const auto control = comm::private_control_page(kRanks);
    auto transports = comm::make_threads_transports(control.get());
    std::vector<Log> logs(kRanks);
    {
      std::vector<std::jthread> threads;
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
          comm::World world(
              static_cast<int>(rank),
              mesh::Mesh::data_parallel(kRanks),
              std::make_unique<RecordingTransport>(std::move(transports[rank]), logs[rank]),
              control);
          try {
            run_step(world, setting, logs[rank], blocks);
          } catch (const Error& error) {
            ADD_FAILURE() << error.text();
            world.transport().abort(error);
          }
        });
      }
    }
    log = std::move(logs.front());
  }

  /// Place of the first such event from `from` on; the end if there is none.
  [[nodiscard]] std::size_t at(const std::string& event, std::size_t from = 0) const {
    const auto begin = log.begin() + static_cast<std::ptrdiff_t>(from);
    return static_cast<std::size_t>(std::find(begin, log.end(), event) - log.begin());
  }
  [[nodiscard]] bool has(const std::string& event) const { return at(event) < log.size(); }
  [[nodiscard]] std::int64_t progress_between(std::size_t from, std::size_t to) const {
    return std::count(log.begin() + static_cast<std::ptrdiff_t>(from),
                      log.begin() + static_cast<std::ptrdiff_t>(to),
                      "progress");
  }
};

std::string forward(const std::string& block, int micro = 0) {
  return "forward " + block + " micro-batch " + std::to_string(micro);
}
std::string backward(const std::string& block, int micro = 0) {
  return "backward " + block + " micro-batch " + std::to_string(micro);
}

TEST(Overlap, TheNextBlocksWeightsAreUnderWayWhileABlockRunsForward) {
  const Events events(Setting{.reduction = {.stage = 3}});
  for (std::size_t b = 0; b + 1 < events.blocks.size(); ++b) {
    const std::string &block = events.blocks[b], &next = events.blocks[b + 1];
    SCOPED_TRACE(block);

    EXPECT_LT(events.at("post gather weights of " + next), events.at("begin " + forward(block)));
    EXPECT_GT(events.at("wait for gather weights of " + next), events.at("end " + forward(block)));
    EXPECT_LT(events.at("wait for gather weights of " + next), events.at("begin " + forward(next)));
  }
}

TEST(Overlap, TheBlockBeforesWeightsAreUnderWayWhileABlockRunsBackward) {
  const Events events(Setting{.reduction = {.stage = 3}});
  // The last block's stay from its forward on.
  for (std::size_t b = events.blocks.size() - 1; b > 0; --b) {
    const std::string &block = events.blocks[b], &next = events.blocks[b - 1];
    SCOPED_TRACE(block);
    const std::size_t turn = events.at("end " + forward(events.blocks.back()));
    const std::size_t post = events.at("post gather weights of " + next, turn);

    EXPECT_LT(post, events.at("begin " + backward(block)));
    EXPECT_GT(events.at("wait for gather weights of " + next, post),
              events.at("end " + backward(block)));
    EXPECT_LT(events.at("wait for gather weights of " + next, post),
              events.at("begin " + backward(next)));
  }
}

TEST(Overlap, WithoutPrefetchABlocksWeightsAreAskedForWhenItIsItsTurn) {
  const Events events(Setting{.gather = {.prefetch = 0}, .reduction = {.stage = 3}});
  for (std::size_t b = 0; b + 1 < events.blocks.size(); ++b) {
    EXPECT_GT(events.at("post gather weights of " + events.blocks[b + 1]),
              events.at("end " + forward(events.blocks[b])));
  }
}

/// The first event that waits for the reduction of a layer's gradients.
std::size_t wait_for_reduction(const Events& events, const std::string& block) {
  return events.at("wait for reduce gradients of " + block + " micro-batch 0");
}

TEST(Overlap, ABlocksGradientsAreReducedWhileTheBlockBeforeRunsBackward) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    const Events events(Setting{.residency = stage == 3 ? Residency::Sharded : Residency::Whole,
                                .reduction = {.stage = stage}});
    for (std::size_t b = events.blocks.size() - 2; b > 1; --b) {
      const std::string &block = events.blocks[b], &next = events.blocks[b - 1];
      SCOPED_TRACE(block);
      const std::size_t post = events.at("post reduce gradients of " + block + " micro-batch 0");

      EXPECT_GT(post, events.at("end " + backward(block)));
      EXPECT_LT(post, events.at("begin " + backward(next)));
      EXPECT_GT(wait_for_reduction(events, block), events.at("end " + backward(next)));
      EXPECT_TRUE(events.has("wait for reduce gradients of " + block + " micro-batch 0"));
    }
  }
}

TEST(Overlap, ABucketWithRoomForOneBlockHasToBeEmptyBeforeTheNextOneRuns) {
  const Events events(Setting{.reduction = {.stage = 3, .bucket = 1}});
  for (std::size_t b = events.blocks.size() - 2; b > 1; --b)
    EXPECT_LT(wait_for_reduction(events, events.blocks[b]),
              events.at("begin " + backward(events.blocks[b - 1])));
}

TEST(Overlap, WhatIsUnderWayContinuesBehindEveryBlockButInTheFirstForward) {
  const Events events(
      Setting{.micros = 2, .residency = Residency::Whole, .reduction = {.stage = 1}});
  const std::vector<std::string>& blocks = events.blocks;
  const std::size_t first_backward = events.at("begin " + backward(blocks.back()));

  EXPECT_EQ(events.progress_between(0, first_backward), 0);
  for (const std::string& block : blocks) {
    for (const int micro : {0, 1}) {
      const std::size_t end = events.at("end " + backward(block, micro));
      EXPECT_EQ(events.progress_between(end, std::min(events.log.size(), end + 3)), 1) << block;
    }
  }
  for (std::size_t b = 0; b + 1 < blocks.size(); ++b) {
    EXPECT_EQ(events.progress_between(events.at("end " + forward(blocks[b], 1)),
                                      events.at("begin " + forward(blocks[b + 1], 1))),
              1);
  }
}

}  // namespace
}  // namespace tessera::parallel

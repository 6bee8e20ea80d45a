// SPDX-License-Identifier: Apache-2.0
// A trained model that is read by one rank or several.
#include "tessera/engine/open_model.h"

#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/engine/evaluate.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/launch.h"
#include "tessera/models/weights_of.h"

namespace tessera::testing {
namespace {

/// What a rank made of the model, and the memory of its weights.
struct Reading {
  double loss = 0.0;
  std::vector<std::int32_t> tokens;
  std::int64_t weights = 0, most = 0;
};

Reading read_model(const std::filesystem::path& path,
                   comm::World& world,
                   const data::Dataset& dataset) {
  at::set_num_threads(1);
  memory::Ledger ledger;
  const memory::ScopedLedger scoped(ledger);
  const auto model = engine::find_model(path);
  engine::load_model(*model, world);
  const auto parameters = static_cast<std::size_t>(memory::Tag::Parameters);
  Reading out;
  out.weights = ledger.usage().current[parameters];
  out.loss = engine::evaluate(*model->executor, world, dataset, 7, 2).loss;
  engine::Generator generator(*model->executor, *model->tokenizer, model->shape);
  engine::GenerateOptions how;
  how.max_new_tokens = 20;
  how.ignore_eos = true;
  out.tokens = generator.run("the cat", how, {}).tokens;
  out.most = ledger.usage().peak[parameters];
  world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  return out;
}

TEST(OpenModels, GiveTheSameOnSeveralRanksThatHoldAPartEach) {
  TinyRun run;
  run.set("model.hidden_size", "512").set("model.num_layers", "6");
  const files::TempDir folder;
  (void)run.train({.ranks = 2, .accumulation = 1, .stage = 3}, 1, folder.path());
  planner::Plan plan = run.plan({});
  const auto data = engine::open_data(plan, {});
  Reading alone;
  comm::run_threads(
      1, [&](comm::World& world) { alone = read_model(folder.path(), world, *data->validation); });
  ASSERT_EQ(alone.tokens.size(), 20U);

  for (const int ranks : {2, 4}) {
    std::vector<Reading> all(static_cast<std::size_t>(ranks));
    comm::run_threads(ranks, [&](comm::World& world) {
      all[static_cast<std::size_t>(world.rank())] =
          read_model(folder.path(), world, *data->validation);
    });
    for (const Reading& reading : all) {
      EXPECT_EQ(reading.loss, alone.loss);
      EXPECT_EQ(reading.tokens, alone.tokens);
      // Norms, biases and the small table stay whole; two of six layers are gathered at a time.
      const std::int64_t kept = alone.weights / ranks + alone.weights / 50;
      EXPECT_LT(reading.weights, kept);
      EXPECT_LT(reading.most, kept + alone.weights / 3 + alone.weights / 50);
    }
  }
}

TEST(OpenModels, AreRefusedBeforeTheyAreLoadedWhereTheirWeightsDoNotFit) {
  TinyRun run;
  const files::TempDir folder;
  (void)run.train({.ranks = 1, .accumulation = 1}, 1, folder.path());
  const auto model = engine::find_model(folder.path());
  std::uint64_t elements = 0;
  for (const auto& param : models::parameters_of(model->shape.model))
    elements += static_cast<std::uint64_t>(param->numel());
  const std::uint64_t weights = elements * sizeof(float);
  // All of them are small and whole on every rank.
  for (const int ranks : {1, 3}) {
    const auto fits = static_cast<std::uint64_t>(ranks) * weights * 20 / 19 + 1;
    EXPECT_NO_THROW(engine::check_memory(*model, ranks, fits));
    try {
      engine::check_memory(*model, ranks, fits - 2);
      ADD_FAILURE() << "a model that does not fit was let through";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Memory);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("do not fit into 95 %"));
    }
  }
}

}  // namespace
}  // namespace tessera::testing

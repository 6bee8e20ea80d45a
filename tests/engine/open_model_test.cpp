// SPDX-License-Identifier: Apache-2.0
// A trained model that is read by one rank or several.
#include "tessera/engine/open_model.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/engine/batches.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/launch.h"
#include "tessera/interop/weights_of.h"
#include "tessera/planner/plan.h"

namespace tessera::test {
namespace {

/// What a rank computed with the model, and the memory of its weights.
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
  const planner::Plan plan = run.plan({});
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
  for (const auto& param : nn::parameters_of(model->shape.model))
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
    // A reference beside it needs as much again.
    EXPECT_NO_THROW(
        engine::check_memory(*model, ranks, 2 * fits, engine::ReadAs::F32, 1, model.get()));
    EXPECT_THROW(
        engine::check_memory(*model, ranks, 2 * fits - 4, engine::ReadAs::F32, 1, model.get()),
        Error);
  }
}

/// Logits after `text`, and bytes of the weights.
struct Narrow {
  at::Tensor logits;
  std::int64_t bytes = 0;
  std::vector<std::int32_t> tokens, again;
};

Narrow read_as(const std::filesystem::path& path, engine::ReadAs as) {
  engine::prepare_process(1);  // the allocator that counts
  Narrow out;
  comm::run_threads(1, [&](comm::World& world) {
    at::set_num_threads(1);
    memory::Ledger ledger;
    const memory::ScopedLedger scoped(ledger);
    const auto model = engine::find_model(path);
    engine::load_model(*model, world, as);
    out.bytes = ledger.usage().current[static_cast<std::size_t>(memory::Tag::Parameters)];
    const std::vector<std::int32_t> ids = {116, 104, 101, 32, 99, 97, 116};
    nn::StepContext context(nn::Mode::Prefill, 1);
    const nn::Outcome outcome = model->executor->infer(engine::prompt_batch(ids), context);
    out.logits = outcome.outputs.at("logits").to(at::kDouble).clone();
    engine::GenerateOptions how;
    how.max_new_tokens = 20;
    how.ignore_eos = true;
    how.sampler.temperature = 0;
    engine::Generator generator(*model->executor, *model->tokenizer, model->shape);
    out.tokens = generator.run_ids(ids, how, {}).tokens;
    out.again = generator.run_ids(ids, how, {}).tokens;
  });
  return out;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(OpenModels, AreReadInFewerBits) {
  TinyRun run;
  run.set("model.hidden_size", "256");
  const files::TempDir folder;
  (void)run.train({.ranks = 1, .accumulation = 2}, 8, folder.path());

  const Narrow wide = read_as(folder.path(), engine::ReadAs::F32);
  const Narrow half = read_as(folder.path(), engine::ReadAs::BF16);
  const Narrow quarter = read_as(folder.path(), engine::ReadAs::Int8);

  // Two layers: each rounds its activations a few times to 8 bits of significand; a weight in
  // eight bits is off by up to a 254th of its row's largest, about three times as much.
  EXPECT_LT(distance(half.logits, wide.logits), 2e-2);
  EXPECT_GT(distance(half.logits, wide.logits), 0.0);
  EXPECT_LT(distance(quarter.logits, wide.logits), 6e-2);
  EXPECT_GT(distance(quarter.logits, half.logits), 0.0);
  EXPECT_EQ(2 * half.bytes, wide.bytes);
  // A scale of four bytes for each row of 256 and more, and vectors in bf16.
  EXPECT_LT(quarter.bytes, wide.bytes * 27 / 100);
  for (const Narrow* one : {&wide, &half, &quarter}) {
    EXPECT_EQ(one->tokens.size(), 20U);
    EXPECT_EQ(one->tokens, one->again);
  }
}

// The text has seven tokens and goes on for twenty, so that both leave the window of four.
TEST(OpenModels, AreReadInEightBitsWithWindowsAndSoftCaps) {
  constexpr const char* kSizes =
      R"("num_layers": 2, "hidden_size": 256, "num_heads": 4, "num_kv_heads": 2,
         "ffn_hidden_size": 512, "sliding_window": 4)";
  for (const char* const family : {R"("mistral")",
                                   R"("gemma2", "score_softcap": 2, "logit_softcap": 3)",
                                   R"("gemma3_text")"}) {
    SCOPED_TRACE(family);
    TinyRun run;
    run.set("model", fmt::format("{{\"family\": {}, {}}}", family, kSizes));
    const files::TempDir folder;
    (void)run.train({.ranks = 1, .accumulation = 2}, 8, folder.path());

    const Narrow wide = read_as(folder.path(), engine::ReadAs::F32);
    const Narrow quarter = read_as(folder.path(), engine::ReadAs::Int8);

    // The bound of AreReadInFewerBits.
    EXPECT_LT(distance(quarter.logits, wide.logits), 6e-2);
    EXPECT_GT(distance(quarter.logits, wide.logits), 0.0);
    EXPECT_EQ(quarter.tokens.size(), 20U);
    EXPECT_EQ(quarter.tokens, quarter.again);
  }
}

TEST(OpenModels, AreReadInBf16OnSeveralRanksAlike) {
  TinyRun run;
  run.set("model.hidden_size", "512");
  const files::TempDir folder;
  (void)run.train({.ranks = 1, .accumulation = 2}, 1, folder.path());
  const Narrow alone = read_as(folder.path(), engine::ReadAs::BF16);
  std::vector<at::Tensor> logits(2);

  comm::run_threads(2, [&](comm::World& world) {
    at::set_num_threads(1);
    const auto model = engine::find_model(folder.path());
    engine::load_model(*model, world, engine::ReadAs::BF16);
    nn::StepContext context(nn::Mode::Prefill, 1);
    const nn::Outcome outcome = model->executor->infer(
        engine::prompt_batch(std::vector<std::int32_t>{116, 104, 101, 32, 99, 97, 116}), context);
    logits[static_cast<std::size_t>(world.rank())] =
        outcome.outputs.at("logits").to(at::kDouble).clone();
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  });

  EXPECT_TRUE(at::equal(logits[0], alone.logits));
  EXPECT_TRUE(at::equal(logits[1], alone.logits));
}

TEST(OpenModels, AreReadWithoutWhatTheirFirstWeightsCameFrom) {
  const files::TempDir first, second;
  const TinyRun run;
  (void)run.train({}, 1, first.path() / "checkpoints");
  TinyRun tuned;
  tuned.set("model", "{\"from\": \"" + first.path().string() + "\", \"dropout\": 0}");
  (void)tuned.train({}, 1, second.path() / "checkpoints");
  std::filesystem::remove_all(first.path() / "checkpoints");

  const auto model = engine::find_model(second.path());

  EXPECT_EQ(model->shape.hidden_size, 32);
  EXPECT_EQ(model->tokenizer->name(), "byte");
  ASSERT_TRUE(model->config.has_value());
  EXPECT_EQ(model->config->find("model")->find("from"), nullptr);
  engine::load_model(*model, 1);
}

// Samples of ends of text only, in which nothing is to be predicted.
class NothingToPredict final : public data::TokenDataset {
 public:
  [[nodiscard]] std::int64_t size() const override { return 3; }
  [[nodiscard]] std::int64_t length() const override { return 4; }
  bool get(std::int64_t /*index*/,
           std::int64_t* input_ids,
           std::int64_t* labels,
           std::int64_t* mask) const override {
    std::fill_n(input_ids, 4, 0);
    std::fill_n(labels, 4, -100);
    std::fill_n(mask, 4, 1);
    return false;
  }
};

TEST(OpenModels, AreNotMeasuredOnNothing) {
  const files::TempDir folder;
  (void)TinyRun().train({}, 1, folder.path());
  const auto model = engine::find_model(folder.path());
  engine::load_model(*model, 1);
  try {
    (void)engine::evaluate(*model->executor, *model->world, NothingToPredict(), 3, 2);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_NE(std::string(error.what()).find("3 samples"), std::string::npos) << error.what();
  }
}

TEST(OpenModels, UnknownPrecisionsAndEightBitsOnRanksWithWholeLayersAreRefused) {
  TinyRun run;
  const files::TempDir folder;
  (void)run.train({.ranks = 1, .accumulation = 1}, 1, folder.path());
  const auto model = engine::find_model(folder.path());
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 40;

  EXPECT_NO_THROW(engine::check_memory(*model, 1, kMuch, engine::ReadAs::Int8));
  EXPECT_NO_THROW(engine::check_memory(*model, 2, kMuch, engine::ReadAs::Int8, /*sharers=*/2));
  EXPECT_THROW(engine::check_memory(*model, 2, kMuch, engine::ReadAs::Int8), Error);
  EXPECT_THROW(engine::check_memory(*model, 4, kMuch, engine::ReadAs::Int8, /*sharers=*/2), Error);
  EXPECT_EQ(engine::read_as_from_name("bf16"), engine::ReadAs::BF16);
  EXPECT_THROW(engine::read_as_from_name("bf61"), Error);
  for (const auto as : {engine::ReadAs::F32, engine::ReadAs::BF16, engine::ReadAs::Int8})
    EXPECT_EQ(engine::read_as_from_name(engine::name(as)), as);
}

}  // namespace
}  // namespace tessera::test

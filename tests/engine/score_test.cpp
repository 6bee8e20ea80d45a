// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of texts and of answers agree with the losses of the tasks that learn them.
#include "tessera/engine/score.h"

#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/train_runs.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/open_model.h"
#include "tessera/planner/plan.h"
#include "tessera/tasks/text_pairs.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

// The most by which sums of some tens of fp32 logits may differ between a batch with padding and
// one text.
constexpr double kTolerance = 2e-5;

using Pairs = std::vector<std::pair<std::string, std::string>>;
const Pairs kPairs = {{"aab", "many a"}, {"b", "many b, which is one"}, {"abababab", "x"}};

std::string records_of(const Pairs& pairs) {
  std::string out;
  for (const auto& [source, target] : pairs)
    out += fmt::format("{{\"source\": \"{}\", \"target\": \"{}\"}}\n", source, target);
  return out;
}

/// An encoder with a decoder, trained for two steps.
TinyRun run_of(const std::string& model) {
  TinyRun run;
  Pairs train;
  for (int i = 0; i < 16; ++i)
    train.push_back(kPairs[static_cast<std::size_t>(i) % kPairs.size()]);
  files::write_atomic(run.folder() / "train.jsonl", records_of(train));
  files::write_atomic(run.folder() / "held.jsonl", records_of(kPairs));
  run.set("model", model)
      .set("task", R"({"type": "seq2seq", "params": {"target_length": 24}})")
      .set("data",
           fmt::format(R"({{"train": "{0}/train.jsonl", "validation": "{0}/held.jsonl",
                            "sequence_length": 12}})",
                       run.folder().string()));
  return run;
}

/// The mean negative log-probability of the targets, over all their tokens.
double loss_by_scoring(engine::OpenModel& model) {
  engine::Generator generator(*model.executor, *model.tokenizer, model.shape);
  std::vector<double> all;
  for (const auto& [source, target] : kPairs) {
    const std::vector<std::int32_t> ids = tasks::ids_with_end(target, *model.tokenizer);
    const auto made = engine::answer_log_probabilities(
        *model.executor, model.shape, generator.encode(source), ids);
    EXPECT_EQ(made.size(), ids.size());
    all.insert(all.end(), made.begin(), made.end());
  }
  return -std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
}

class AnswerScoresOf : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(AnswerScoresOf, TargetsSumUpToTheLossOfTheTaskOnAnyRanks) {
  const TinyRun run = run_of(GetParam().second);
  const files::TempDir folder;
  (void)run.train({.ranks = 1, .accumulation = 2}, 2, folder.path());
  const planner::Plan plan = run.plan({});
  const auto data = engine::open_data(plan, {});

  for (const int ranks : {1, 2}) {
    std::vector<double> scored(static_cast<std::size_t>(ranks)), evaluated = scored;
    comm::run_threads(ranks, [&](comm::World& world) {
      at::set_num_threads(1);
      const auto model = engine::find_model(folder.path());
      engine::load_model(*model, world);
      const auto rank = static_cast<std::size_t>(world.rank());
      evaluated[rank] = engine::evaluate(*model->executor,
                                         world,
                                         *data->validation,
                                         static_cast<std::int64_t>(kPairs.size()),
                                         2)
                            .loss;
      scored[rank] = loss_by_scoring(*model);
      world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
    });
    for (std::size_t rank = 0; rank < scored.size(); ++rank) {
      EXPECT_NEAR(scored[rank], evaluated[rank], kTolerance);
      EXPECT_EQ(scored[rank], scored[0]);
    }
  }
}

constexpr const char* kBiased = R"({"family": "compose", "num_layers": 1, "hidden_size": 32,
    "num_heads": 2, "embedding": ["word"], "mask": "fully_visible", "position": "relative",
    "decoder": "transformer", "lm_bias": true})";

INSTANTIATE_TEST_SUITE_P(
    Families,
    AnswerScoresOf,
    testing::Values(
        std::pair{"t5", R"({"family": "t5", "num_layers": 1, "hidden_size": 32, "num_heads": 2})"},
        std::pair{"cpm2",
                  R"({"family": "cpm2", "num_layers": 1, "hidden_size": 32, "num_heads": 2})"},
        std::pair{"compose", kBiased}),
    [](const auto& info) { return std::string(info.param.first); });

TEST(Scores, OfATextAloneAndOfAnAnswerNeedTheirKindOfModel) {
  const files::TempDir answers, continues;
  (void)run_of(kBiased).train({}, 1, answers.path());
  (void)TinyRun().train({}, 1, continues.path());
  const auto refusal = [](const fs::path& path, bool pair) {
    const auto model = engine::find_model(path);
    engine::load_model(*model, 1);
    try {
      pair ? (void)engine::answer_log_probabilities(*model->executor, model->shape, {5}, {6})
           : (void)engine::log_probabilities(*model->executor, model->shape, {5, 6});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
      return std::string(error.what());
    }
    return std::string("nothing");
  };

  EXPECT_EQ(refusal(answers.path(), true), "nothing");
  EXPECT_EQ(refusal(continues.path(), false), "nothing");
  EXPECT_THAT(refusal(answers.path(), false), testing::HasSubstr("answers one text by another"));
  EXPECT_THAT(refusal(continues.path(), true),
              testing::HasSubstr("needs an encoder-decoder model"));
}

}  // namespace
}  // namespace tessera::test

// SPDX-License-Identifier: Apache-2.0
// The moving average of the weights: its formula, its layouts, evaluation with it.
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/on_engines.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;
using tessera::test::expect_same_bits;
using tessera::test::Layout;
using tessera::test::on_engines;
using tessera::test::TinyRun;
using tessera::test::Trace;
using ::testing::HasSubstr;

std::vector<float> read(const fs::path& folder, const std::string& name) {
  const checkpoint::Checkpoint opened(folder);
  for (const checkpoint::Checkpoint::Tensor& tensor : opened.tensors()) {
    if (tensor.name == name) return opened.values(tensor);
  }
  ADD_FAILURE() << name << " is not in " << folder;
  return {};
}

TinyRun averaged(const std::string& ema) {
  TinyRun run;
  run.set("trainer.ema", ema).set("eval.weights", "\"ema\"");
  return run;
}

/// Saves the state before and after each of `steps` steps.
void save_each(const TinyRun& run, const Layout& layout, const fs::path& root, int steps) {
  on_engines(run, layout, [&](Engine& engine) {
    engine.save(root);
    for (int i = 0; i < steps; ++i) {
      engine.train_step();
      engine.save(root);
    }
  });
}

/// The average of a parameter after each step, by the formula, of the saved weights. decay: 1/2,
/// which is exact.
std::vector<std::vector<float>> by_formula(
    const fs::path& root, const std::string& name, int steps, int start, int every) {
  std::vector<std::vector<float>> out = {read(root / checkpoint::step_name(0), name)};
  for (int t = 1; t <= steps; ++t) {
    const std::vector<float> weights = read(root / checkpoint::step_name(t), name);
    std::vector<float> average = out.back();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (t <= start) {
        average[i] = weights[i];
      } else if (t % every == 0) {
        average[i] = static_cast<float>(0.5 * static_cast<double>(average[i]) +
                                        0.5 * static_cast<double>(weights[i]));
      }
    }
    out.push_back(std::move(average));
  }
  return out;
}

TEST(Average, FollowsItsFormula) {
  for (const auto& [start, every] : {std::pair(0, 1), std::pair(2, 1), std::pair(1, 2)}) {
    SCOPED_TRACE(start);
    const files::TempDir dir;
    const TinyRun run =
        averaged(fmt::format(R"({{"decay": 0.5, "start": {}, "every": {}}})", start, every));

    save_each(run, {.ranks = 2}, dir.path(), 4);

    for (const std::string name : {"wte.weight", "h.1.mlp.c_fc.bias"}) {
      const auto expected = by_formula(dir.path(), name, 4, start, every);
      for (int t = 0; t <= 4; ++t)
        EXPECT_EQ(read(dir.path() / checkpoint::step_name(t), "optimizer.ema." + name),
                  expected[static_cast<std::size_t>(t)])
            << name << " after step " << t;
      EXPECT_NE(expected.back(), read(dir.path() / checkpoint::step_name(4), name));
    }
  }
}

TEST(Average, HasTheSameBitsInEveryLayout) {
  const TinyRun run = averaged(R"({"decay": 0.9})");
  const files::TempDir dir;
  const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4, dir.path());
  EXPECT_THAT(one.digest, ::testing::Contains(HasSubstr("optimizer.ema.wte.weight")));

  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE(stage);
    const files::TempDir other;
    expect_same_bits(one,
                     run.train({.ranks = 2, .accumulation = 2, .stage = stage}, 4, other.path()));
  }
  const files::TempDir first, second;
  (void)run.train({.ranks = 2, .accumulation = 2}, 2, first.path());
  const Trace resumed = run.train({.ranks = 1, .accumulation = 4, .stage = 0},
                                  4,
                                  second.path(),
                                  *checkpoint::newest(first.path()));
  EXPECT_EQ(resumed.digest, one.digest);
  EXPECT_EQ(resumed.eval_losses, one.eval_losses);
}

TEST(Average, OfAnyRuleLeavesItsWeights) {
  for (const char* optimizer : {R"({"type": "Lamb"})",
                                R"({"type": "Adafactor"})",
                                R"({"type": "Muon"})",
                                R"({"type": "SGD"})"}) {
    SCOPED_TRACE(optimizer);
    TinyRun with = averaged(R"({"decay": 0.9})"), without;
    with.set("optimizer", optimizer);
    without.set("optimizer", optimizer);
    const Layout layout{.ranks = 2};

    EXPECT_EQ(with.train(layout, 3).losses, without.train(layout, 3).losses);
  }
}

// An average that never moves keeps the initial weights.
TEST(Average, IsWhatIsEvaluatedAndTrainingContinuesWithTheWeights) {
  for (const bool half : {false, true}) {
    TinyRun run = averaged(R"({"decay": 1})");
    if (half) run.set("bf16.enabled", "true");
    for (const int stage : {1, 3}) {
      SCOPED_TRACE(stage + (half ? 10 : 0));
      std::vector<double> evaluated, undisturbed, losses;
      on_engines(run, {.ranks = 2, .stage = stage}, [&](Engine& engine) {
        std::vector<double> mine = {engine.evaluate().loss}, steps;
        for (int i = 0; i < 3; ++i) {
          steps.push_back(engine.train_step().loss);
          mine.push_back(engine.evaluate().loss);
        }
        if (engine.world().is_leader()) evaluated = mine, losses = steps;
      });
      on_engines(run, {.ranks = 2, .stage = stage}, [&](Engine& engine) {
        std::vector<double> steps;
        for (int i = 0; i < 3; ++i)
          steps.push_back(engine.train_step().loss);
        if (engine.world().is_leader()) undisturbed = steps;
      });

      EXPECT_EQ(evaluated, std::vector<double>(4, evaluated.front()));
      EXPECT_EQ(losses, undisturbed);
    }
  }
}

TEST(Average, BeginsWithTheWeightsOfACheckpointThatHasNone) {
  const files::TempDir before, after;
  const TinyRun plain;
  (void)plain.train({.ranks = 2}, 3, before.path());

  on_engines(
      averaged(R"({"decay": 0.5})"),
      {.ranks = 2},
      [&](Engine& engine) { engine.save(after.path()); },
      *checkpoint::newest(before.path()));

  const fs::path saved = after.path() / checkpoint::step_name(3);
  EXPECT_EQ(read(saved, "optimizer.ema.wte.weight"), read(saved, "wte.weight"));
}

TEST(Average, IsNotSavedInPlaceOfTheWeights) {
  const files::TempDir whole, beside;
  on_engines(averaged(R"({"decay": 0.5})"), {.ranks = 2}, [&](Engine& engine) {
    engine.train_step();
    engine.train_step();
    engine.save(whole.path());
    engine.saver().save_in_background(beside.path());
    engine.evaluate();
    engine.saver().finish();
  });

  EXPECT_EQ(checkpoint::Checkpoint(beside.path() / checkpoint::step_name(2)).digest(),
            checkpoint::Checkpoint(whole.path() / checkpoint::step_name(2)).digest());
}

TEST(Average, IsRefusedWhereItCannotBeKept) {
  const auto refusal = [](TinyRun run) -> std::string {
    try {
      (void)run.plan({});
    } catch (const Error& error) {
      return error.text();
    }
    return "";
  };
  EXPECT_THAT(refusal(TinyRun().set("eval.weights", "\"ema\"")), HasSubstr("trainer.ema.decay"));
  EXPECT_THAT(refusal(TinyRun().set("trainer.ema.every", "3")), HasSubstr("has no effect without"));
  EXPECT_THAT(refusal(TinyRun()
                          .set("trainer.ema.decay", "0.9")
                          .set("bf16.enabled", "true")
                          .set("bf16.bf16_master_weights_and_grads", "true")),
              HasSubstr("in 16 bits"));
  EXPECT_THAT(
      refusal(
          TinyRun().set("trainer.ema.decay", "0.9").set("optimizer", R"({"type": "OneBitAdam"})")),
      HasSubstr("not built yet: an average of the weights of OneBitAdam"));
}

}  // namespace
}  // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Several adapters in one base: every text equals the one of its adapter alone.
#include "tessera/engine/adapters.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/engine/generate.h"

namespace tessera::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kNames[] = {"lora", "dora", "table"};
constexpr const char* kSections[] = {
    R"({"type": "lora", "r": 4, "alpha": 16})",
    R"({"type": "dora", "r": 2, "alpha": 8, "targets": ["q_proj", "down_proj"]})",
    R"({"type": "rslora", "r": 3, "alpha": 9, "targets": ["embed_tokens", "v_proj"]})"};

/// A base, and adapters that were trained on it until their texts differ.
class Adapters : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new files::TempDir;
    (void)small().train({.accumulation = 2}, 4, base());
    for (std::size_t i = 0; i < std::size(kNames); ++i)
      (void)train(kSections[i], adapter(i));
  }
  static void TearDownTestSuite() { delete folder_; }

  static fs::path base() { return folder_->path() / "base"; }
  static fs::path adapter(std::size_t i) { return folder_->path() / kNames[i]; }
  /// A table that is not the head's, and projections that lie in one parameter.
  static TinyRun small() {
    return TinyRun().set("model", R"({"family": "llama", "num_layers": 2, "hidden_size": 32,
                                      "num_heads": 4, "max_positions": 16})");
  }
  static Trace train(const std::string& section, const fs::path& to) {
    TinyRun run;
    run.set("adapter", section)
        .set("model", "{\"from\": \"" + checkpoint::newest(base())->string() + "\"}")
        .set("optimizer.params.lr", "5e-2");
    return run.train({.accumulation = 2}, 12, to);
  }
  static std::vector<engine::AdapterName> all() {
    std::vector<engine::AdapterName> out;
    for (std::size_t i = 0; i < std::size(kNames); ++i)
      out.push_back({kNames[i], adapter(i)});
    return out;
  }
  static void with_model(int ranks,
                         const fs::path& path,
                         const std::vector<engine::AdapterName>& adapters,
                         const std::function<void(engine::Generator&, bool is_leader)>& fn,
                         engine::ReadAs as = engine::ReadAs::F32) {
    comm::run_threads(ranks, [&](comm::World& world) {
      at::set_num_threads(1);
      const auto model = engine::find_model(path);
      engine::add_adapters(*model, adapters);
      engine::load_model(*model, world, as);
      engine::Generator generator(*model->executor, *model->tokenizer, model->shape);
      fn(generator, world.is_leader());
    });
  }
  static engine::GenerateOptions greedy(int adapter = -1) {
    engine::GenerateOptions out;
    out.max_new_tokens = 24;
    out.sampler.temperature = 0.0;
    out.ignore_eos = true;
    out.adapter = adapter;
    return out;
  }

  static inline files::TempDir* folder_ = nullptr;
};

const std::vector<std::vector<std::int32_t>> kPrompts = {
    {116, 104, 101, 32}, {99, 97}, {100, 111, 103, 32, 114}, {97}};

TEST_F(Adapters, GiveTheTextsOfTheMergedModelsToTheToken) {
  std::vector<std::vector<std::vector<std::int32_t>>> merged;  // of the base, then each adapter
  for (int i = -1; i < std::ssize(kNames); ++i) {
    merged.emplace_back();
    with_model(1, i < 0 ? base() : adapter(i), {}, [&](engine::Generator& generator, bool) {
      for (const auto& prompt : kPrompts)
        merged.back().push_back(generator.run_ids(prompt, greedy(), {}).tokens);
    });
  }

  with_model(1, base(), all(), [&](engine::Generator& generator, bool) {
    for (int i = -1; i < std::ssize(kNames); ++i) {
      for (std::size_t p = 0; p < kPrompts.size(); ++p) {
        EXPECT_EQ(generator.run_ids(kPrompts[p], greedy(i), {}).tokens, merged[i + 1][p])
            << "adapter " << i << ", prompt " << p;
      }
    }
  });
  for (std::size_t i = 1; i < merged.size(); ++i)
    EXPECT_NE(merged[i], merged[0]) << i;
}

TEST_F(Adapters, DoNotDependOnTheOthersThatAreGeneratedTogether) {
  for (const int ranks : {1, 2}) {
    with_model(ranks, base(), all(), [&](engine::Generator& generator, bool is_leader) {
      std::vector<engine::Generator::Asked> asked;
      std::vector<std::vector<std::int32_t>> alone;
      engine::GenerateOptions options = greedy();
      options.sampler.temperature = 1.0;
      for (int i = 0; i < 14; ++i) {
        asked.push_back(
            {kPrompts[i % kPrompts.size()], static_cast<std::uint64_t>(i), i % 5 % 4 - 1});
        options.adapter = asked.back().adapter;
        options.seed = asked.back().seed;
        alone.push_back(generator.run_ids(asked.back().prompt, options, {}).tokens);
      }
      std::vector<std::vector<std::int32_t>> together(asked.size());
      generator.run_prompts(asked, options, 5, [&](std::size_t number, engine::Generated made) {
        together[number] = std::move(made.tokens);
      });
      if (is_leader) {
        EXPECT_EQ(together, alone);
      }
    });
  }
}

TEST_F(Adapters, AreSearchedByBeams) {
  std::vector<std::int32_t> beam, merged;
  engine::GenerateOptions options = greedy(0);
  options.beams = 3;
  options.max_new_tokens = 6;
  with_model(1, base(), all(), [&](engine::Generator& generator, bool) {
    beam = generator.run_beams(kPrompts[0], options, 1).front().made.tokens;
  });
  options.adapter = -1;
  with_model(1, adapter(0), {}, [&](engine::Generator& generator, bool) {
    merged = generator.run_beams(kPrompts[0], options, 1).front().made.tokens;
  });
  EXPECT_EQ(beam, merged);
}

// The base is rounded to 8 bits, and the adapters are not.
TEST_F(Adapters, StandInABaseOfEightBits) {
  const auto first_tokens = [](engine::Generator& generator, int number) {
    std::vector<std::int32_t> out;
    for (const auto& prompt : kPrompts)
      out.push_back(generator.run_ids(prompt, greedy(number), {}).tokens.front());
    return out;
  };
  std::vector<std::vector<std::int32_t>> merged, alone;
  std::vector<std::int32_t> base_alone;
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    with_model(1, adapter(i), {}, [&](engine::Generator& generator, bool) {
      merged.push_back(first_tokens(generator, -1));
    });
    with_model(
        1,
        base(),
        {{kNames[i], adapter(i)}},
        [&](engine::Generator& generator, bool) { alone.push_back(first_tokens(generator, 0)); },
        engine::ReadAs::Int8);
  }
  with_model(
      1,
      base(),
      {},
      [&](engine::Generator& generator, bool) { base_alone = first_tokens(generator, -1); },
      engine::ReadAs::Int8);

  with_model(
      1,
      base(),
      all(),
      [&](engine::Generator& generator, bool) {
        EXPECT_EQ(first_tokens(generator, -1), base_alone);
        for (std::size_t i = 0; i < std::size(kNames); ++i)
          EXPECT_EQ(first_tokens(generator, static_cast<int>(i)), alone[i]) << kNames[i];
      },
      engine::ReadAs::Int8);
  // Rounding changes a token where two are almost equally likely, but not most of them.
  int same = 0, others = 0;
  for (std::size_t i = 0; i < merged.size(); ++i) {
    for (std::size_t p = 0; p < merged[i].size(); ++p) {
      same += alone[i][p] == merged[i][p] ? 1 : 0;
      others += base_alone[p] != merged[i][p] ? 1 : 0;
    }
  }
  EXPECT_GE(same, 9) << "of 12";
  EXPECT_GE(others, 6) << "tokens that an adapter changes, else this test shows nothing";
}

std::string refusal(const fs::path& base, const std::vector<engine::AdapterName>& adapters) {
  try {
    const auto model = engine::find_model(base);
    engine::add_adapters(*model, adapters);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(Adapters, AreRefusedIfTheyDoNotFitTheBase) {
  const files::TempDir other, biased;
  (void)small().set("trainer.seed", "77").train({}, 1, other.path());
  EXPECT_THAT(refusal(other.path(), {{"lora", adapter(0)}}), HasSubstr("another model"));
  EXPECT_THAT(refusal(base(), {{"a", adapter(0)}, {"a", adapter(1)}}), HasSubstr("two adapters"));
  EXPECT_THAT(refusal(base(), {{"a", other.path()}}), HasSubstr("holds no adapter"));
  (void)train(R"({"type": "lora", "modules_to_save": ["lm_head"]})", biased.path());
  EXPECT_THAT(refusal(base(), {{"a", biased.path()}}), HasSubstr("replaces"));
}

// The head of TinyRun's model multiplies by the table of tokens.
TEST_F(Adapters, OfATiedTableAreUsedWithTheirBaseAndAreNotMerged) {
  const files::TempDir folder;
  const fs::path tied = folder.path() / "base", tuned = folder.path() / "tuned";
  (void)TinyRun().train({.accumulation = 2}, 4, tied);
  TinyRun run;
  run.set("adapter", R"({"type": "lora", "r": 4, "alpha": 16, "targets": ["wte"]})")
      .set("model", "{\"from\": \"" + checkpoint::newest(tied)->string() + "\"}")
      .set("optimizer.params.lr", "5e-2");
  (void)run.train({.accumulation = 2}, 12, tuned);

  std::string refused;
  try {
    with_model(1, tuned, {}, [](engine::Generator&, bool) {});
  } catch (const Error& error) {
    refused = error.text();
  }
  EXPECT_THAT(refused, HasSubstr("the adapter of transformer.wte cannot be merged"));
  with_model(1, tied, {{"tuned", tuned}}, [](engine::Generator& generator, bool) {
    std::vector<std::vector<std::int32_t>> with, without;
    for (const auto& prompt : kPrompts) {
      with.push_back(generator.run_ids(prompt, greedy(0), {}).tokens);
      without.push_back(generator.run_ids(prompt, greedy(-1), {}).tokens);
    }
    EXPECT_NE(with, without);
  });
}

}  // namespace
}  // namespace tessera::test

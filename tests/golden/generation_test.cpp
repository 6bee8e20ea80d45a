// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Rules of generation and beam search as transformers computes them.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>

#include "golden/golden.h"
#include "golden/recorded_generator.h"
#include <gtest/gtest.h>

#include "tessera/engine/generate.h"
#include "tessera/engine/logits_rules.h"

namespace tessera {
namespace {

using golden::ids_of;

constexpr double kProcessors = 1e-12, kScores = 1e-5;
constexpr double kRemoved = -std::numeric_limits<double>::infinity();

/// null: removed.
std::vector<double> row_of(const json::Value& list) {
  std::vector<double> out;
  for (const json::Value& value : list.items())
    out.push_back(value.is_null() ? kRemoved : value.as_double());
  return out;
}

double number(const json::Value& arguments, const char* name, double otherwise) {
  const json::Value* found = arguments.find(name);
  return found == nullptr || found->is_null() ? otherwise : found->as_double();
}

/// The rule that the arguments of a case are of.
void apply(std::span<double> row,
           const std::string& rule,
           const json::Value& of,
           const std::vector<std::int32_t>& ids) {
  const engine::TokenHistory seen{ids,
                                  static_cast<std::size_t>(number(of, "prompt_length_to_skip", 0))};
  engine::LogitsRules rules;
  rules.repetition_penalty = number(of, "repetition_penalty", number(of, "penalty", 1.0));
  rules.no_repeat_ngram = static_cast<std::int64_t>(number(of, "ngram_size", 0));
  rules.min_new_tokens = static_cast<std::int64_t>(number(of, "min_new_tokens", 0));
  if (const json::Value* words = of.find("bad_words_ids")) {
    for (const json::Value& word : words->items())
      rules.bad_words.push_back(ids_of(word));
  }
  const std::vector<std::int32_t> ends = {static_cast<std::int32_t>(number(of, "eos_token_id", 0))};
  engine::apply_rules(row, rules, seen, ends);
  if (of.find("temperature") != nullptr)
    engine::apply_temperature(row, number(of, "temperature", 1.0));
  if (of.find("top_k") != nullptr)
    engine::keep_top_k(row, static_cast<std::int64_t>(number(of, "top_k", 0)));
  if (of.find("top_p") != nullptr) engine::keep_top_p(row, number(of, "top_p", 1.0));
  if (of.find("min_p") != nullptr) engine::keep_min_p(row, number(of, "min_p", 0.0));
  if (of.find("mass") != nullptr) engine::keep_typical(row, number(of, "mass", 1.0));
  if (const json::Value* epsilon = of.find("epsilon")) {
    if (rule.find("eta") != std::string::npos) {
      engine::keep_eta(row, epsilon->as_double());
    } else {
      engine::keep_epsilon(row, epsilon->as_double());
    }
  }
}

TEST(GoldenGeneration, RulesChangeLogitsAsPublished) {
  const json::Value record = golden::read_json(golden::folder() / "generation" / "processors.json");
  const auto& prompts = golden::at(record, "input_ids").items();
  const auto& rows = golden::at(record, "logits").items();
  for (const json::Value& one : golden::at(record, "cases").items()) {
    const std::string rule = golden::at(one, "rule").as_string();
    const json::Value& arguments = golden::at(one, "arguments");
    SCOPED_TRACE(rule + " " + arguments.dump());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::vector<double> row = row_of(rows[r]);
      const std::vector<double> expected = row_of(golden::at(one, "logits").items()[r]);

      apply(row, rule, arguments, ids_of(prompts[r]));

      for (std::size_t i = 0; i < row.size(); ++i) {
        EXPECT_EQ(std::isinf(row[i]), std::isinf(expected[i])) << "row " << r << " token " << i;
        if (std::isfinite(row[i]) && std::isfinite(expected[i])) {
          EXPECT_NEAR(row[i], expected[i], kProcessors) << "row " << r << " token " << i;
        }
      }
    }
  }
}

engine::GenerateOptions options_of(const json::Value& one) {
  engine::GenerateOptions options;
  options.ignore_eos = true;
  options.max_new_tokens = golden::at(one, "max_new_tokens").as_integer().value();
  options.stop_ids = {
      static_cast<std::int32_t>(golden::at(one, "eos_token_id").as_integer().value())};
  options.sampler.temperature = 0.0;
  const json::Value& settings = golden::at(one, "settings");
  options.rules.repetition_penalty = number(settings, "repetition_penalty", 1.0);
  options.rules.no_repeat_ngram =
      static_cast<std::int64_t>(number(settings, "no_repeat_ngram_size", 0));
  options.rules.min_new_tokens = static_cast<std::int64_t>(number(settings, "min_new_tokens", 0));
  options.beams = static_cast<int>(number(settings, "num_beams", 1));
  options.length_penalty = number(settings, "length_penalty", 1.0);
  if (const json::Value* early = settings.find("early_stopping")) {
    if (early->is_string()) {
      options.early_stopping = engine::EarlyStopping::Never;
    } else if (early->is_bool() && early->as_bool()) {
      options.early_stopping = engine::EarlyStopping::Full;
    }
  }
  return options;
}

/// The new tokens with the end token, and the score.
std::vector<engine::Generator::Beam> continued(engine::Generator& generator,
                                               const json::Value& prompt,
                                               const engine::GenerateOptions& options,
                                               int count) {
  std::vector<engine::Generator::Beam> out;
  if (options.beams == 1) {
    out.push_back({generator.run_ids(ids_of(prompt), options, {}), 0.0});
  } else {
    out = generator.run_beams(ids_of(prompt), options, count);
  }
  for (auto& beam : out) {
    if (beam.made.ended) beam.made.tokens.push_back(options.stop_ids.front());
  }
  return out;
}

void compare(engine::Generator& generator, const json::Value& one) {
  SCOPED_TRACE(golden::at(one, "settings").dump());
  const engine::GenerateOptions options = options_of(one);
  const json::Value* scores = one.find("sequences_scores");
  const int count =
      static_cast<int>(number(golden::at(one, "settings"), "num_return_sequences", 1));
  std::size_t row = 0;
  for (const json::Value& prompt : golden::at(one, "prompts").items()) {
    const auto made = continued(generator, prompt, options, count);

    ASSERT_EQ(made.size(), static_cast<std::size_t>(count));
    for (const auto& beam : made) {
      EXPECT_EQ(beam.made.tokens, ids_of(golden::at(one, "sequences").items()[row]));
      if (scores != nullptr && options.beams > 1) {
        const double expected = scores->items()[row].as_double();
        // The length penalty scales the error of the sum with the score itself.
        EXPECT_NEAR(beam.score, expected, kScores * std::max(1.0, std::abs(expected) / 10));
      }
      ++row;
    }
  }
}

TEST(GoldenGeneration, TextsAndBeamsAreThoseOfTransformers) {
  int compared = 0;
  for (const auto& file : golden::cases("generation")) {
    const json::Value record = golden::read_json(file);
    const json::Value* model = record.find("model");
    if (model == nullptr) {
      std::cout << "without a model, left to the test of logits: " << file.filename().string()
                << "\n";
      continue;
    }
    const auto folder = (file.parent_path() / model->as_string()).lexically_normal();
    SCOPED_TRACE(file.filename().string());
    golden::RecordedGenerator loaded(folder);

    for (const json::Value& one : golden::at(record, "cases").items())
      compare(loaded.generator, one);
    ++compared;
  }
  std::cout << "ran texts of " << compared << " models\n";
  EXPECT_GT(compared, 0) << "no texts of a model in " << golden::folder();
}

}  // namespace
}  // namespace tessera

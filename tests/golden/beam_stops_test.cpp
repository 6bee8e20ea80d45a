// SPDX-License-Identifier: Apache-2.0
// Beam search with stop strings as transformers computes it (recorded by beam_stops_reference.py).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "golden/golden.h"
#include "golden/recorded_generator.h"
#include "support/source_dir.h"
#include <gtest/gtest.h>

#include "tessera/engine/generate.h"
#include "tessera/engine/stop_strings.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Tolerance of a sum of 12 log-probabilities in fp32; the recorded sums are in fp64.
constexpr double kScores = 1e-5;

/// Two letters for each id, as in the script.
class Pairs final : public text::Tokenizer {
 public:
  explicit Pairs(std::int64_t size) {
    for (std::int64_t id = 0; id < size; ++id)
      texts_.push_back({static_cast<char>('a' + id / 16), static_cast<char>('a' + id % 16)});
  }
  [[nodiscard]] std::string name() const override { return "pairs"; }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(texts_); }
  [[nodiscard]] std::int32_t end_of_text() const override {
    return static_cast<std::int32_t>(size());
  }
  void encode(std::string_view /*text*/,
              std::vector<std::int32_t>& /*out*/,
              bool /*special*/) const override {}
  [[nodiscard]] std::string_view bytes_of(std::int32_t id) const override {
    const auto& text = texts_.at(static_cast<std::size_t>(id));
    return {text.data(), text.size()};
  }
  [[nodiscard]] std::string fingerprint() const override { return "pairs"; }

 private:
  std::vector<std::array<char, 2>> texts_;
};

struct Loaded {
  explicit Loaded(const fs::path& folder)
      : model(folder),
        tokenizer(model.resolved.vocab_size),
        generator(model.executor, tokenizer, model.resolved) {}
  golden::RecordedGenerator model;
  Pairs tokenizer;
  engine::Generator generator;
};

engine::GenerateOptions options_of(const json::Value& one) {
  engine::GenerateOptions options;
  options.ignore_eos = true;
  options.max_new_tokens = golden::at(one, "max_new_tokens").as_integer().value();
  for (const json::Value& stop : golden::at(one, "stop_strings").items())
    options.stop_strings.push_back(stop.as_string());
  const json::Value& settings = golden::at(one, "settings");
  options.beams = static_cast<int>(golden::at(settings, "num_beams").as_integer().value());
  if (const json::Value* penalty = settings.find("length_penalty"))
    options.length_penalty = penalty->as_double();
  if (const json::Value* early = settings.find("early_stopping"))
    options.early_stopping =
        early->is_string() ? engine::EarlyStopping::Never : engine::EarlyStopping::Full;
  return options;
}

/// Compares a beam with the recorded tokens and score; returns true if a stop string ended it.
bool compare(const Loaded& loaded,
             const engine::Generator::Beam& beam,
             const engine::GenerateOptions& options,
             const std::vector<std::int32_t>& tokens,
             double score) {
  EXPECT_EQ(beam.made.tokens, tokens);
  // The length penalty scales the error of the sum with the score itself.
  EXPECT_NEAR(beam.score, score, kScores * std::max(1.0, std::abs(score) / 10));
  // The text is that of the tokens, cut by hand.
  const std::string whole = loaded.tokenizer.decode(tokens);
  const std::size_t end = engine::find_stop(whole, options.stop_strings);
  EXPECT_EQ(beam.made.text, whole.substr(0, end));
  EXPECT_EQ(beam.made.ended, end != std::string::npos);
  return beam.made.ended;
}

TEST(GoldenBeamStops, BeamsEndAtStopStringsAsInTransformers) {
  const fs::path here = test::source_dir() / "tests" / "golden";
  std::map<std::string, std::unique_ptr<Loaded>> models;
  std::size_t stopped = 0, compared = 0;
  const json::Value record = golden::read_json(here / "beam_stops.json");
  for (const json::Value& one : record.items()) {
    SCOPED_TRACE(golden::at(one, "settings").dump() + golden::at(one, "stop_strings").dump());
    const std::string name = golden::at(one, "model").as_string();
    std::unique_ptr<Loaded>& loaded = models[name];
    if (!loaded) loaded = std::make_unique<Loaded>(here / "reference" / "models" / name);
    const engine::GenerateOptions options = options_of(one);
    const auto& sequences = golden::at(one, "sequences").items();
    const auto& scores = golden::at(one, "scores").items();

    const auto beams = loaded->generator.run_beams(
        golden::ids_of(golden::at(one, "prompt")), options, options.beams);

    ASSERT_EQ(beams.size(), sequences.size());
    for (std::size_t i = 0; i < beams.size(); ++i) {
      ++compared;
      if (compare(
              *loaded, beams[i], options, golden::ids_of(sequences[i]), scores[i].as_double())) {
        ++stopped;
      }
    }
  }
  EXPECT_GT(stopped, 0U) << "no beam of " << compared << " ended at a stop string";
  EXPECT_LT(stopped, compared) << "no beam has its full length";
}

}  // namespace
}  // namespace tessera

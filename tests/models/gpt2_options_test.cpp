// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/family.h"

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Read {
  Resolved resolved;
  config::Problems problems;
  [[nodiscard]] std::string text() const {
    std::string out;
    for (const auto& p : problems.list())
      out += p.place.text() + " " + p.path + ": " + p.what + " (" + p.fix + ")\n";
    return out;
  }
};

Read resolve(const std::string& model,
             std::int64_t tokenizer_size = 256,
             std::optional<std::int64_t> sequence_length = {}) {
  Read out;
  config::Origins origins;
  const json::Value source = json::parse("{\"model\": " + model + "}", "config.json");
  struct Whole {
    ModelOptions model;
    void describe(config::Fields& fields) { fields.section("model", model, "The model."); }
  } options;
  config::read(source, options, out.problems, origins);
  out.resolved =
      models::resolve(options.model, tokenizer_size, sequence_length, out.problems, origins);
  return out;
}

TEST(Gpt2Presets, HaveTheirPublishedSizes) {
  // Parameters of the released models with 50,257 tokens and 1,024 positions.
  const auto parameters = [](const std::string& preset) {
    return resolve("{\"preset\": \"" + preset + "\", \"vocab_size\": 50257}", 50257)
        .resolved.num_parameters;
  };

  EXPECT_EQ(parameters("gpt2-small"), 124'439'808);
  EXPECT_EQ(parameters("gpt2-medium"), 354'823'168);
  EXPECT_EQ(parameters("gpt2-large"), 774'030'080);
  EXPECT_EQ(parameters("gpt2-xl"), 1'557'611'200);
}

TEST(Gpt2Presets, AreAllKnown) {
  for (const std::string& preset : names_of(families().get("gpt2").presets)) {
    const Read read = resolve("{\"preset\": \"" + preset + "\"}");

    EXPECT_TRUE(read.problems.empty()) << read.text();
    EXPECT_GT(read.resolved.num_parameters, 0);
  }
  EXPECT_EQ(families().get("gpt2").presets.size(), 8U);
}

TEST(Gpt2Presets, StartWithNanoWhenNoSizeIsGiven) {
  const Resolved resolved = resolve("{\"dropout\": 0.1}").resolved;

  EXPECT_EQ(resolved.num_layers, 4);
  EXPECT_EQ(resolved.hidden_size, 128);
  EXPECT_EQ(resolved.num_heads, 4);
}

TEST(Gpt2Presets, AreOverriddenByFields) {
  const Resolved resolved = resolve("{\"preset\": \"mini\", \"num_layers\": 3}").resolved;

  EXPECT_EQ(resolved.num_layers, 3);
  EXPECT_EQ(resolved.hidden_size, 384);
}

TEST(Gpt2Options, AskForTheSizesThatAreMissing) {
  const Read read = resolve("{\"hidden_size\": 64}");

  EXPECT_EQ(read.problems.list().size(), 2U);
  EXPECT_NE(read.text().find("model.num_layers is missing"), std::string::npos);
  EXPECT_NE(read.text().find("model.num_heads is missing"), std::string::npos);
}

TEST(Gpt2Options, HeadsOfKeysAndValuesDivideTheOthers) {
  EXPECT_EQ(resolve("{\"preset\": \"nano\"}").resolved.num_kv_heads, 4);
  EXPECT_EQ(resolve("{\"preset\": \"nano\", \"num_kv_heads\": 2}").resolved.num_kv_heads, 2);
  EXPECT_THAT(resolve("{\"preset\": \"nano\", \"num_kv_heads\": 3}").text(),
              AllOf(HasSubstr("num_kv_heads 3 does not divide num_heads 4"),
                    HasSubstr("choose num_kv_heads from 1, 2, 4")));
}

/// Blocks of impossible sizes are not asked for their parameters.
TEST(Gpt2Options, AreRefusedOnceWhereASizeComesToNothing) {
  for (const char* options : {R"({"preset": "nano", "mlp_ratio": 0.001})",
                              R"({"num_layers": 1, "hidden_size": 2, "num_heads": 4})"}) {
    SCOPED_TRACE(options);
    const Read read = resolve(options);

    EXPECT_EQ(read.problems.list().size(), 1U);
    for (const nn::BlockSpec& block : read.resolved.model.blocks)
      EXPECT_NO_THROW((void)nn::declared_by(block));
  }
}

TEST(Gpt2Options, ReportAllProblemsWithTheirPlaces) {
  const Read read = resolve(
      "{\"num_layers\": 2, \"hidden_size\": 100,\n \"num_heads\": 12, \"vocab_size\": 200, "
      "\"max_positions\": 32}",
      256,
      64);

  EXPECT_EQ(read.problems.list().size(), 3U);
  EXPECT_NE(read.text().find("config.json:2:"), std::string::npos);
  EXPECT_NE(read.text().find("num_heads 12 does not divide hidden_size 100"), std::string::npos);
  EXPECT_NE(read.text().find("choose num_heads from 1, 2, 4, 5, 10, 20, 25, 50, 100"),
            std::string::npos);
  EXPECT_NE(read.text().find("vocab_size 200 is smaller than the tokenizer's 256"),
            std::string::npos);
  EXPECT_NE(
      read.text().find("sequence_length 64 exceeds the number of positions of the model (32)"),
      std::string::npos);
}

TEST(Gpt2Options, RoundTheVocabularyUpTo64) {
  EXPECT_EQ(resolve("{}", 256).resolved.vocab_size, 256);
  EXPECT_EQ(resolve("{}", 50257).resolved.vocab_size, 50304);
  EXPECT_EQ(resolve("{\"vocab_size\": 50257}", 50257).resolved.vocab_size, 50257);
  EXPECT_EQ(resolve("{}", 50257).resolved.tokenizer_size, 50257);
}

TEST(Gpt2Options, FitPositionsToTheSequences) {
  EXPECT_EQ(resolve("{}").resolved.max_positions, 1024);
  EXPECT_EQ(resolve("{}", 256, 64).resolved.max_positions, 64);
  EXPECT_EQ(resolve("{\"max_positions\": 128}", 256, 64).resolved.max_positions, 128);
  EXPECT_EQ(resolve("{\"preset\": \"gpt3\"}", 256, 64).resolved.max_positions, 2048);
}

TEST(Gpt2Options, NameTheNearestActivation) {
  const Read read = resolve("{\"activation\": \"gelu_tan\"}");

  EXPECT_FALSE(read.problems.empty());
  EXPECT_NE(read.text().find("gelu_tanh"), std::string::npos);
}

TEST(Gpt2Options, DescribeTheResolvedModelCompletely) {
  const Resolved first = resolve("{\"preset\": \"mini\", \"dropout\": 0.1}", 256, 64).resolved;

  const Resolved again = resolve(first.description.dump(), 256, 64).resolved;

  EXPECT_TRUE(first.description == again.description);
  EXPECT_EQ(first.num_parameters, again.num_parameters);
  EXPECT_EQ(again.max_positions, 64);
}

TEST(Gpt2Options, KeepTheScalesOfAttentionInTheirFolder) {
  const ModelOptions read = options_from_hf(json::parse(
      R"({"model_type": "gpt2", "scale_attn_weights": false,
          "scale_attn_by_inverse_layer_idx": true, "reorder_and_upcast_attn": true})",
      "config.json"));
  const json::Value written = families().get("gpt2").to_hf(*read);

  EXPECT_EQ(written.find("scale_attn_weights")->as_bool(), false);
  EXPECT_EQ(written.find("scale_attn_by_inverse_layer_idx")->as_bool(), true);
}

}  // namespace
}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// Defaults of the options that choose the next token.
#include "tessera/cli/generation_flags.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::cli {
namespace {

/// No text has tokens.
class Empty final : public text::Tokenizer {
 public:
  [[nodiscard]] std::string name() const override { return "empty"; }
  [[nodiscard]] std::int64_t size() const override { return 1; }
  [[nodiscard]] std::int32_t end_of_text() const override { return 0; }
  void encode(std::string_view /*text*/,
              std::vector<std::int32_t>& /*out*/,
              bool /*special*/) const override {}
  [[nodiscard]] std::string_view bytes_of(std::int32_t /*id*/) const override { return {}; }
  [[nodiscard]] std::string fingerprint() const override { return "empty"; }
};

double temperature(const std::vector<std::string>& line,
                   const engine::GenerationConfig& folder,
                   bool several = false) {
  GenerationFlags words;
  Arguments arguments("generate", "", {});
  words.declare(arguments);
  EXPECT_TRUE(arguments.parse(line));
  words.several = several;
  return words.options(Empty(), folder).sampler.temperature;
}

TEST(GenerationFlags, DrawUnlessTheFolderIsGreedy) {
  engine::GenerationConfig greedy, drawing;
  greedy.temperature = 0.0;
  drawing.temperature = 0.6;
  EXPECT_EQ(temperature({}, {}), 1.0);
  EXPECT_EQ(temperature({}, greedy), 0.0);
  EXPECT_EQ(temperature({}, drawing), 0.6);
  EXPECT_EQ(temperature({"--temperature", "0.7"}, greedy), 0.7);
  EXPECT_EQ(temperature({"--temperature", "0"}, drawing), 0.0);
}

// An option without an effect would be a surprise.
TEST(GenerationFlags, DrawWhereAnOptionIsAboutDrawing) {
  engine::GenerationConfig greedy;
  greedy.temperature = 0.0;
  for (const char* const option : {"--top-k", "--seed"})
    EXPECT_EQ(temperature({option, "7"}, greedy), 1.0) << option;
  for (const char* const option : {"--top-p", "--min-p", "--typical-p", "--epsilon-cutoff"})
    EXPECT_EQ(temperature({option, "0.5"}, greedy), 1.0) << option;
  EXPECT_EQ(temperature({}, greedy, /*several=*/true), 1.0);
  EXPECT_EQ(temperature({"--temperature", "0", "--seed", "7"}, greedy), 0.0);
  EXPECT_EQ(temperature({"--repetition-penalty", "1.1"}, greedy), 0.0);
}

}  // namespace
}  // namespace tessera::cli

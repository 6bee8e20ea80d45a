// SPDX-License-Identifier: Apache-2.0
// Embeddings of many texts: each equals the embedding of the text alone, and their order is kept.
#include "tessera/engine/embed.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/engine/open_model.h"
#include "tessera/text/tokenizer.h"

namespace tessera::test {
namespace {

// How much padding may change sums of some tens of float32 numbers of about 1.
constexpr float kTolerance = 2e-5F;

const std::vector<std::string> kTexts = {
    "the cat", "a", "which of the two is longer", "cats and dogs", "z"};

using Rows = std::vector<std::vector<float>>;

class Embed : public ::testing::Test {
 protected:
  Embed() { (void)TinyRun().train({.ranks = 1, .accumulation = 2}, 2, folder_.path()); }

  Rows embeddings(const std::vector<std::string>& texts,
                  const engine::EmbedOptions& options = {},
                  const char* pooling = "last",
                  int ranks = 1) {
    Rows out;
    comm::run_threads(ranks, [&](comm::World& world) {
      at::set_num_threads(1);
      const auto model = engine::find_model(folder_.path());
      models::ObjectiveChoice objective{.name = "embedding"};
      objective.options["pooling"] = json::Value::string(pooling);
      engine::set_objective(*model, objective);
      engine::load_model(*model, world);
      Rows rows;
      const engine::EmbedStats stats =
          engine::embed(*model->executor,
                        *model->tokenizer,
                        model->shape,
                        texts,
                        options,
                        [&](std::int64_t text, std::span<const float> row) {
                          EXPECT_EQ(text, std::ssize(rows));
                          rows.emplace_back(row.begin(), row.end());
                        });
      if (world.rank() == 0) {
        out = rows;
        stats_ = stats;
      }
      world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
    });
    return out;
  }

  static float difference(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    float most = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      most = std::max(most, std::abs(a[i] - b[i]));
    return most;
  }

  files::TempDir folder_;
  engine::EmbedStats stats_;
};

TEST_F(Embed, GivesEachTextWhatItHasAlone) {
  for (const char* pooling : {"last", "mean", "cls"}) {
    SCOPED_TRACE(pooling);
    const Rows together = embeddings(kTexts, {}, pooling);
    // 26 bytes are more than the model's 16 positions.
    EXPECT_EQ(stats_.texts, 5);
    EXPECT_EQ(stats_.cut, 1);
    EXPECT_EQ(stats_.tokens, 7 + 1 + 16 + 13 + 1);
    EXPECT_EQ(stats_.padding, 5 * 16 - stats_.tokens);

    ASSERT_EQ(together.size(), kTexts.size());
    for (std::size_t i = 0; i < kTexts.size(); ++i)
      EXPECT_LT(difference(together[i], embeddings({kTexts[i]}, {}, pooling)[0]), kTolerance);
    EXPECT_GT(difference(together[0], together[3]), 0.01F);
  }
}

TEST_F(Embed, MakesBatchesOfTextsOfAboutOneLength) {
  const Rows whole = embeddings(kTexts);
  const Rows small = embeddings(kTexts, {.batch_tokens = 16});

  for (std::size_t i = 0; i < kTexts.size(); ++i)
    EXPECT_LT(difference(whole[i], small[i]), kTolerance);
  // 16; 13; 7 and 1; 1: the last two have one batch, with the 7.
  EXPECT_EQ(stats_.padding, 6);
}

TEST_F(Embed, CutsTextsAtTheLimit) {
  const Rows cut = embeddings({"the cat"}, {.max_tokens = 3});

  EXPECT_EQ(stats_.cut, 1);
  EXPECT_EQ(cut, embeddings({"the"}));
}

TEST_F(Embed, IsTheSameWhereRanksHoldTheModelBetweenThem) {
  EXPECT_EQ(embeddings(kTexts, {}, "mean", 2), embeddings(kTexts, {}, "mean"));
}

TEST_F(Embed, RefusesATextWithoutTokens) {
  EXPECT_THROW(embeddings({"a", ""}), Error);
}

TEST_F(Embed, NamesTheLineOfATextWithoutTokensBeforeItBegins) {
  const text::TokenizerPtr tokenizer = text::make_tokenizer({});
  const engine::EmbedOptions options{.file = "lines.txt"};

  EXPECT_NO_THROW(engine::require_tokens(*tokenizer, {"a", "b"}, options));
  try {
    engine::require_tokens(*tokenizer, {"a", ""}, options);
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_THAT(error.what(), testing::HasSubstr("lines.txt:2: the text has no tokens"));
  }
}

/// Puts tokens before and after a text.
class Surrounding final : public text::Tokenizer {
 public:
  [[nodiscard]] std::string name() const override { return "surrounding"; }
  [[nodiscard]] std::int64_t size() const override { return 256; }
  [[nodiscard]] std::int32_t end_of_text() const override { return 0; }
  void encode(std::string_view text,
              std::vector<std::int32_t>& out,
              bool /*special*/) const override {
    out.insert(out.end(), text.begin(), text.end());
  }
  [[nodiscard]] std::string_view bytes_of(std::int32_t /*id*/) const override { return {}; }
  [[nodiscard]] std::string fingerprint() const override { return "surrounding"; }
  [[nodiscard]] std::vector<std::int32_t> beginning() const override { return {1}; }
  [[nodiscard]] std::vector<std::int32_t> ending() const override { return {2, 3}; }
};

TEST(EncodeWhole, KeepsTheTokensAroundATextThatIsCut) {
  const Surrounding tokenizer;
  bool cut = true;

  EXPECT_EQ(engine::encode_whole(tokenizer, "ab", 5, cut),
            (std::vector<std::int32_t>{1, 'a', 'b', 2, 3}));
  EXPECT_FALSE(cut);
  EXPECT_EQ(engine::encode_whole(tokenizer, "abc", 5, cut),
            (std::vector<std::int32_t>{1, 'a', 'b', 2, 3}));
  EXPECT_TRUE(cut);
  EXPECT_EQ(engine::encode_whole(tokenizer, "", 5, cut), (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_THROW((void)engine::encode_whole(tokenizer, "a", 3, cut), Error);
}

}  // namespace
}  // namespace tessera::test

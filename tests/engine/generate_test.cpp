// SPDX-License-Identifier: Apache-2.0
// Several continuations of a prompt made together, compared with each of them alone.
#include "tessera/engine/generate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/open_model.h"
#include "tessera/text/tokenizer.h"

namespace tessera::test {
namespace {

/// More than twice the tiny model's 16 positions: the text is read again on the way.
constexpr std::int64_t kTokens = 40;
const std::vector<std::int32_t> kPrompt = {116, 104, 101, 32};

class Samples : public ::testing::Test {
 protected:
  Samples() {
    (void)TinyRun().train({.ranks = 1, .accumulation = 2}, 2, folder_.path());
    options_.max_new_tokens = kTokens;
    options_.seed = 11;
  }
  void with_generator(const std::function<void(engine::Generator&)>& fn) const {
    comm::run_threads(1, [&](comm::World& world) {
      at::set_num_threads(1);
      const auto model = engine::find_model(folder_.path());
      engine::load_model(*model, world);
      engine::Generator generator(*model->executor, *model->tokenizer, model->shape);
      fn(generator);
    });
  }
  files::TempDir folder_;
  engine::GenerateOptions options_;
};

TEST_F(Samples, AreWhatTheirSeedsMakeAlone) {
  constexpr int kCount = 5;
  // A model that has hardly learned ends about one text in 256 tokens; at a lower temperature it
  // would end none.
  options_.sampler.temperature = 2.0;
  with_generator([&](engine::Generator& generator) {
    const auto together = generator.run_samples(kPrompt, options_, kCount);

    ASSERT_EQ(together.size(), static_cast<std::size_t>(kCount));
    for (int i = 0; i < kCount; ++i) {
      engine::GenerateOptions alone = options_;
      alone.seed += static_cast<std::uint64_t>(i);
      const engine::Generated one = generator.run_ids(kPrompt, alone, {});
      const auto& sample = together[static_cast<std::size_t>(i)];
      EXPECT_EQ(sample.tokens, one.tokens) << "sample " << i;
      EXPECT_EQ(sample.ended, one.ended);
      if (i > 0) {
        EXPECT_NE(sample.tokens, together[0].tokens);
      }
    }
  });
}

TEST_F(Samples, EndEachOnItsOwn) {
  options_.sampler.temperature = 2.0;
  options_.max_new_tokens = 400;
  with_generator([&](engine::Generator& generator) {
    const auto all = generator.run_samples(kPrompt, options_, 4);

    std::size_t longest = 0, shortest = 400;
    for (const engine::Generated& one : all) {
      longest = std::max(longest, one.tokens.size());
      shortest = std::min(shortest, one.tokens.size());
      EXPECT_EQ(one.ended, one.tokens.size() < 400U);
      for (const std::int32_t token : one.tokens)
        EXPECT_NE(token, 0) << "the end of text is not a token of the text";
    }
    EXPECT_LT(shortest, longest);
  });
}

TEST_F(Samples, AreAllTheSameWhereNothingIsDrawn) {
  options_.sampler.temperature = 0;
  options_.ignore_eos = true;
  with_generator([&](engine::Generator& generator) {
    const auto all = generator.run_samples(kPrompt, options_, 3);
    std::vector<std::int32_t> told;
    const engine::Generated alone =
        generator.run_ids(kPrompt, options_, [&](std::int32_t id) { told.push_back(id); });

    EXPECT_EQ(alone.tokens.size(), static_cast<std::size_t>(kTokens));
    EXPECT_EQ(told, alone.tokens);
    for (const engine::Generated& one : all)
      EXPECT_EQ(one.tokens, alone.tokens);
  });
}

/// Prompts of lengths from 0 to more than the model's positions.
std::vector<engine::Generator::Asked> unequal_prompts() {
  std::vector<engine::Generator::Asked> out;
  for (const std::size_t length : {3U, 0U, 16U, 1U, 29U, 7U, 15U}) {
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < length; ++i)
      ids.push_back(97 + static_cast<std::int32_t>((i * 7 + length) % 26));
    out.push_back({ids, 5 + length});
  }
  return out;
}

void expect_each_as_alone(engine::Generator& generator,
                          const engine::GenerateOptions& options,
                          int at_once) {
  const auto asked = unequal_prompts();
  std::vector<int> told(asked.size(), 0);

  generator.run_prompts(asked, options, at_once, [&](std::size_t number, auto made) {
    ++told.at(number);
    engine::GenerateOptions alone = options;
    alone.seed = asked[number].seed;
    const engine::Generated one = generator.run_ids(asked[number].prompt, alone, {});
    EXPECT_EQ(made.tokens, one.tokens) << "prompt " << number << ", " << at_once << " at once";
    EXPECT_EQ(made.text, one.text);
    EXPECT_EQ(made.ended, one.ended);
  });

  EXPECT_EQ(told, std::vector<int>(asked.size(), 1));
}

TEST_F(Samples, OfPromptsOfDifferentLengthsAreWhatEachMakesAlone) {
  options_.sampler.temperature = 2.0;
  with_generator([&](engine::Generator& generator) {
    for (const int at_once : {1, 3, 7, 100})
      expect_each_as_alone(generator, options_, at_once);
    options_.rules.repetition_penalty = 1.3;
    expect_each_as_alone(generator, options_, 4);
    options_.max_new_tokens = 0;
    expect_each_as_alone(generator, options_, 4);
  });
}

TEST_F(Samples, OfPromptsNeedRoomForAtLeastOneText) {
  with_generator([&](engine::Generator& generator) {
    EXPECT_THROW(generator.run_prompts(unequal_prompts(), options_, 0, [](std::size_t, auto) {}),
                 Error);
  });
}

// The token after a prompt is the one of the largest logit after a prefix, which the prompt is.
TEST(PrefixLm, ContinuesThePromptAsAPrefix) {
  const files::TempDir folder;
  (void)TinyRun()
      .set("task", R"("prefix_lm")")
      .train({.ranks = 1, .accumulation = 2}, 2, folder.path());
  engine::GenerateOptions options;
  options.max_new_tokens = kTokens;
  options.ignore_eos = true;
  options.sampler.temperature = 0;
  comm::run_threads(1, [&](comm::World& world) {
    at::set_num_threads(1);
    const auto model = engine::find_model(folder.path());
    engine::load_model(*model, world);
    engine::Generator generator(*model->executor, *model->tokenizer, model->shape);
    const std::vector<std::int32_t> made = generator.run_ids(kPrompt, options, {}).tokens;
    ASSERT_EQ(made.size(), static_cast<std::size_t>(kTokens));
    std::vector<std::int32_t> text = kPrompt;
    for (std::size_t i = 0; i < 12; ++i) {
      nn::Batch batch = engine::prompt_batch(text);
      batch.set("prefix_lengths", at::tensor({std::ssize(kPrompt)}, at::kLong));
      nn::StepContext context(nn::Mode::Eval, 1);
      context.want_logits = true;
      const at::Tensor logits = model->executor->infer(batch, context).outputs.at("logits");
      // The end of text, id 0, is excluded.
      const at::Tensor last =
          logits[0][std::ssize(text) - 1].slice(0, 1, model->shape.tokenizer_size);
      EXPECT_EQ(made[i], last.argmax().item<std::int64_t>() + 1) << "token " << i;
      text.push_back(made[i]);
    }
    expect_each_as_alone(generator, options, 3);
    options.max_new_tokens = 6;
    options.beams = 1;
    EXPECT_EQ(generator.run_beams(kPrompt, options, 1).front().made.tokens,
              std::vector<std::int32_t>(made.begin(), made.begin() + 6));
  });
}

/// Bytes, of which one is a special token.
class Marked final : public text::Tokenizer {
 public:
  Marked(const text::Tokenizer& bytes, std::int32_t special) : bytes_(bytes), special_(special) {}
  [[nodiscard]] std::string name() const override { return "marked"; }
  [[nodiscard]] std::int64_t size() const override { return bytes_.size(); }
  [[nodiscard]] std::int32_t end_of_text() const override { return bytes_.end_of_text(); }
  void encode(std::string_view text, std::vector<std::int32_t>& out, bool special) const override {
    bytes_.encode(text, out, special);
  }
  [[nodiscard]] std::string_view bytes_of(std::int32_t id) const override {
    return id == special_ ? "<end>" : bytes_.bytes_of(id);
  }
  [[nodiscard]] bool is_special(std::int32_t id) const override { return id == special_; }
  [[nodiscard]] std::string fingerprint() const override { return "marked"; }

 private:
  const text::Tokenizer& bytes_;
  std::int32_t special_;
};

TEST_F(Samples, HideSpecialTokensUnlessTheyAreAskedFor) {
  options_.sampler.temperature = 2.0;
  options_.ignore_eos = true;
  comm::run_threads(1, [&](comm::World& world) {
    at::set_num_threads(1);
    const auto model = engine::find_model(folder_.path());
    engine::load_model(*model, world);
    engine::Generator plain(*model->executor, *model->tokenizer, model->shape);
    const std::vector<std::int32_t> ids = plain.run_ids(kPrompt, options_, {}).tokens;
    const std::int32_t special = ids.at(5);
    const Marked tokenizer(*model->tokenizer, special);
    engine::Generator generator(*model->executor, tokenizer, model->shape);
    std::string whole, hidden;
    for (const std::int32_t id : ids) {
      whole += tokenizer.bytes_of(id);
      if (id != special) hidden += tokenizer.bytes_of(id);
    }
    std::string streamed;
    const auto stream = [&](std::string_view piece) { streamed += piece; };

    const engine::Generated made = generator.run("the ", options_, stream);
    EXPECT_EQ(made.tokens, ids);
    EXPECT_EQ(made.text, hidden);
    EXPECT_EQ(streamed, text::replace_invalid_utf8(hidden));

    engine::GenerateOptions shows = options_;
    shows.show_special = true;
    EXPECT_EQ(generator.run_ids(kPrompt, shows, {}).text, whole);

    // A stop string is found in a token that is not shown.
    options_.stop_strings = {"<end>"};
    streamed.clear();
    const engine::Generated stopped = generator.run("the ", options_, stream);
    EXPECT_TRUE(stopped.ended);
    EXPECT_EQ(stopped.text, whole.substr(0, whole.find("<end>")));
    EXPECT_EQ(streamed, text::replace_invalid_utf8(stopped.text));
  });
}

// One beam is greedy: its text with a stop string is the text without one, cut before the string.
TEST_F(Samples, BeamsEndBeforeStopStrings) {
  options_.max_new_tokens = 10;
  options_.ignore_eos = true;
  options_.rules.no_repeat_ngram = 1;
  comm::run_threads(1, [&](comm::World& world) {
    at::set_num_threads(1);
    const auto model = engine::find_model(folder_.path());
    engine::load_model(*model, world);
    engine::Generator plain(*model->executor, *model->tokenizer, model->shape);
    const auto free = plain.run_beams(kPrompt, options_, 1).front();
    const std::vector<std::int32_t>& ids = free.made.tokens;
    ASSERT_EQ(ids.size(), 10U);
    const Marked tokenizer(*model->tokenizer, ids.at(6));
    engine::Generator generator(*model->executor, tokenizer, model->shape);
    const std::string whole = tokenizer.decode(ids);

    // The string begins before the special token, which is not shown, and ends in it.
    options_.stop_strings = {"never", whole.substr(whole.find("<end>") - 1, 4)};
    const auto stopped = generator.run_beams(kPrompt, options_, 1).front();
    const std::size_t first = whole.find(options_.stop_strings[1]);
    ASSERT_NE(first, std::string::npos);
    EXPECT_EQ(stopped.made.text, whole.substr(0, first));
    EXPECT_TRUE(stopped.made.ended);
    const std::size_t length = stopped.made.tokens.size();
    ASSERT_LT(length, ids.size());
    EXPECT_EQ(stopped.made.tokens, std::vector<std::int32_t>(ids.begin(), ids.begin() + length));

    // Its score is that of a search that ends there by its length.
    options_.stop_strings.clear();
    options_.max_new_tokens = static_cast<std::int64_t>(length);
    EXPECT_EQ(stopped.score, plain.run_beams(kPrompt, options_, 1).front().score);
  });
}

// transformers 5.24: generate() returns the prompt alone, with the score of an unused beam.
TEST_F(Samples, BeamsOfWhichTheRulesRemoveEveryTokenAreTheEmptyText) {
  with_generator([&](engine::Generator& generator) {
    for (std::int32_t id = 0; id < 256; ++id)
      options_.rules.bad_words.push_back({id});
    options_.ignore_eos = true;
    options_.max_new_tokens = 6;

    for (const int width : {1, 3}) {
      options_.beams = width;
      const auto texts = generator.run_beams(kPrompt, options_, width);

      ASSERT_EQ(texts.size(), 1U) << width;
      EXPECT_TRUE(texts.front().made.tokens.empty()) << width;
      EXPECT_FALSE(texts.front().made.ended) << width;
      EXPECT_EQ(texts.front().score, -1e9) << width;
    }
  });
}

}  // namespace
}  // namespace tessera::test

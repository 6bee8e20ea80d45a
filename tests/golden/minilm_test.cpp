// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// A published model of sentences, against an independent forward pass in float64 by numpy over the
// ids that the tokenizers library gives (minilm_reference.py). Needs tools/fetch_model.sh minilm.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "golden/golden.h"
#include "support/source_dir.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/engine/embed.h"
#include "tessera/engine/open_model.h"
#include "tessera/interop/huggingface/sentence_transformers.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// How much fp32 sums of 6 layers may differ from float64, in embeddings of length 1.
constexpr double kDifference = 2e-6;

TEST(MiniLm, GivesTheEmbeddingsOfTexts) {
  const fs::path path = files::cache_dir() / "models/minilm";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is not there: tools/fetch_model.sh minilm";
  const auto expected =
      golden::read_jsonl(test::source_dir() / "tests/golden/minilm_embeddings.jsonl");
  std::vector<std::string> texts;
  std::int64_t tokens = 0;
  for (const json::Value& one : expected) {
    texts.push_back(one.find("text")->as_string());
    tokens += *one.find("tokens")->as_integer();
  }
  const auto said = interop::sentence_model_of(path);
  ASSERT_TRUE(said);
  models::ObjectiveChoice objective{.name = "embedding"};
  objective.options["pooling"] = json::Value::string(said->pooling);
  objective.options["normalize"] = json::Value::boolean(said->normalize);
  const auto model = engine::find_model(said->folder);
  engine::set_objective(*model, objective);
  engine::load_model(*model);

  const engine::EmbedStats stats = engine::embed(
      *model->executor,
      *model->tokenizer,
      model->shape,
      texts,
      {.max_tokens = said->max_tokens.value()},
      [&](std::int64_t text, std::span<const float> embedding) {
        const auto wanted =
            golden::numbers(*expected.at(static_cast<std::size_t>(text)).find("embedding"));
        ASSERT_EQ(embedding.size(), wanted.size());
        double most = 0;
        for (std::size_t i = 0; i < wanted.size(); ++i)
          most = std::max(most, std::abs(static_cast<double>(embedding[i]) - wanted[i]));
        EXPECT_LT(most, kDifference) << texts[static_cast<std::size_t>(text)];
      });

  EXPECT_EQ(stats.texts, std::ssize(expected));
  EXPECT_EQ(stats.tokens, tokens);
  EXPECT_EQ(stats.cut, 1);
}

}  // namespace
}  // namespace tessera

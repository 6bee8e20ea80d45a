// SPDX-License-Identifier: Apache-2.0
// Tokens of vocab.txt files as transformers' BertTokenizer gives them.
#include "golden/golden.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/text/tokenizer.h"
#include "tessera/text/tokenizers/tokenizer_file.h"

namespace tessera {
namespace {

namespace fs = golden::fs;
using text::tokenizers::Encoding;
using text::tokenizers::Pipeline;
using Json = nlohmann::json;

std::vector<fs::path> vocabularies() {
  std::vector<fs::path> out;
  for (const auto& folder : golden::cases("tokenizers")) {
    if (fs::exists(folder / "vocab.txt") && !fs::exists(folder / "tokenizer.json"))
      out.push_back(folder);
  }
  return out;
}

std::vector<Json> cases_of(const fs::path& folder) {
  std::vector<Json> out;
  std::istringstream in(golden::text(folder / "cases.jsonl"));
  for (std::string line; std::getline(in, line);)
    out.push_back(Json::parse(line));
  return out;
}

TEST(GoldenVocabulary, GivesTheTokensOfBertTokenizer) {
  int compared = 0;
  for (const fs::path& folder : vocabularies()) {
    const Pipeline pipeline(text::tokenizers::read_tokenizer_file(folder / "vocab.txt").parts,
                            folder.string());
    for (const Json& record : cases_of(folder)) {
      const auto text = record.at("text").get<std::string>();
      SCOPED_TRACE(folder.filename().string() + ": " + record.at("text").dump());

      const Encoding encoding = pipeline.encode(text);

      EXPECT_EQ(Json(encoding.ids), record.at("ids"));
      Json tokens = Json::array();
      for (const std::int32_t id : pipeline.encode(text, /*special=*/false).ids)
        tokens.push_back(pipeline.token_of(id));
      EXPECT_EQ(tokens, record.at("tokens"));
      ++compared;
    }
  }
  EXPECT_GT(compared, 0) << "no vocab.txt in " << golden::folder();
}

TEST(GoldenVocabulary, PutsTwoTextsTogetherWithTypes) {
  int compared = 0;
  for (const fs::path& folder : vocabularies()) {
    const Pipeline pipeline(text::tokenizers::read_tokenizer_file(folder / "vocab.txt").parts,
                            folder.string());
    const text::TokenizerPtr tokenizer = text::tokenizer_from_folder(folder);
    for (const Json& record : cases_of(folder)) {
      if (!record.contains("pair")) continue;
      SCOPED_TRACE(folder.filename().string() + ": " + record.dump());

      const Encoding encoding = pipeline.encode_pair(record.at("text").get<std::string>(),
                                                     record.at("pair").get<std::string>());

      EXPECT_EQ(Json(encoding.ids), record.at("pair_ids"));
      EXPECT_EQ(Json(encoding.type_ids), record.at("pair_token_type_ids"));
      std::vector<std::int32_t> first, second;
      tokenizer->encode(record.at("text").get<std::string>(), first);
      tokenizer->encode(record.at("pair").get<std::string>(), second);
      const text::JoinedIds joined = tokenizer->join(first, second);
      EXPECT_EQ(Json(joined.ids), record.at("pair_ids"));
      EXPECT_EQ(Json(joined.types), record.at("pair_token_type_ids"));
      ++compared;
    }
  }
  EXPECT_GT(compared, 0) << "no pairs in " << golden::folder();
}

TEST(GoldenVocabulary, IsTheTokenizerOfAFolderThatHasNoOther) {
  for (const fs::path& folder : vocabularies()) {
    SCOPED_TRACE(folder.string());
    const text::TokenizerPtr tokenizer = text::tokenizer_from_folder(folder);

    const Json record = cases_of(folder).front();
    std::vector<std::int32_t> ids;
    tokenizer->encode(record.at("text").get<std::string>(), ids);
    ids.insert(ids.begin(), record.at("ids").front().get<std::int32_t>());
    ids.push_back(tokenizer->end_of_text());

    EXPECT_EQ(tokenizer->name(), "file");
    EXPECT_EQ(Json(ids), record.at("ids"));
  }
}

}  // namespace
}  // namespace tessera

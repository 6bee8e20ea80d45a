// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Tokens, offsets and texts as the tokenizers library gives them for each tokenizer.json.
#include <sstream>

#include "golden/golden.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/files.h"
#include "tessera/text/tokenizers/pipeline.h"

namespace tessera {
namespace {

namespace fs = golden::fs;
using text::tokenizers::Encoding;
using text::tokenizers::Pipeline;
using Json = nlohmann::json;

std::vector<Json> lines_of(const fs::path& path) {
  std::vector<Json> out;
  if (!fs::exists(path)) return out;
  std::istringstream in(files::read(path));
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) out.push_back(Json::parse(line));
  }
  return out;
}

// Empty if the recorded answers have no tokenizer.json: the tests are then left out.
std::vector<fs::path> folders() {
  std::vector<fs::path> out;
  for (const auto& folder : golden::cases("tokenizers")) {
    if (fs::exists(folder / "tokenizer.json")) out.push_back(folder);
  }
  return out;
}

Pipeline pipeline_of(const fs::path& file) {
  return Pipeline(Json::parse(files::read(file)), file.string());
}

Json offsets_of(const Encoding& encoding) {
  Json out = Json::array();
  for (const auto& [begin, end] : encoding.offsets)
    out.push_back({begin, end});
  return out;
}

TEST(GoldenTokenizerJson, GivesTheLibrarysTokensOffsetsAndTexts) {
  const auto all = folders();
  if (all.empty()) {
    GTEST_SKIP() << "no tokenizer.json in " << golden::folder();
  }
  for (const auto& folder : all) {
    const Pipeline pipeline = pipeline_of(folder / "tokenizer.json");
    for (const Json& record : lines_of(folder / "cases.jsonl")) {
      const auto text = record.at("text").get<std::string>();
      SCOPED_TRACE(folder.filename().string() + ": " + record.at("text").dump());

      const Encoding encoding = pipeline.encode(text);

      EXPECT_EQ(Json(encoding.ids), record.at("ids"));
      EXPECT_EQ(Json(encoding.tokens), record.at("tokens"));
      if (record.contains("offsets")) {
        EXPECT_EQ(offsets_of(encoding), record.at("offsets"));
      }
      if (record.contains("decoded")) {
        EXPECT_EQ(Json(pipeline.decode(encoding.ids)), record.at("decoded"));
        EXPECT_EQ(Json(pipeline.decode(encoding.ids, /*skip_special=*/true)),
                  record.at("decoded_skip_special"));
      }
    }
  }
}

TEST(GoldenTokenizerJson, GivesTheSameIdsTheFastWay) {
  const auto all = folders();
  if (all.empty()) {
    GTEST_SKIP() << "no tokenizer.json in " << golden::folder();
  }
  for (const auto& folder : all) {
    const Pipeline pipeline = pipeline_of(folder / "tokenizer.json");
    for (const Json& record : lines_of(folder / "cases.jsonl")) {
      const auto text = record.at("text").get<std::string>();
      SCOPED_TRACE(folder.filename().string() + ": " + record.at("text").dump());
      const Json expected =
          record.contains("ids_without_special") ? record["ids_without_special"] : record["ids"];

      std::vector<std::int32_t> ids;
      pipeline.encode_ids(text, ids, /*special=*/true);

      EXPECT_EQ(Json(ids), expected);
      EXPECT_EQ(Json(pipeline.encode(text, /*special=*/false).ids), expected);
    }
  }
}

TEST(GoldenTokenizerJson, PutsTwoTextsTogether) {
  const auto all = folders();
  if (all.empty()) {
    GTEST_SKIP() << "no tokenizer.json in " << golden::folder();
  }
  for (const auto& folder : all) {
    const Pipeline pipeline = pipeline_of(folder / "tokenizer.json");
    for (const Json& record : lines_of(folder / "cases.jsonl")) {
      if (!record.contains("pair")) continue;
      SCOPED_TRACE(folder.filename().string() + ": " + record.dump());

      const Encoding encoding = pipeline.encode_pair(record.at("text").get<std::string>(),
                                                     record.at("pair").get<std::string>());

      EXPECT_EQ(Json(encoding.ids), record.at("pair_ids"));
      EXPECT_EQ(Json(encoding.type_ids), record.at("pair_token_type_ids"));
      if (record.contains("pair_offsets")) {
        EXPECT_EQ(offsets_of(encoding), record.at("pair_offsets"));
      }
    }
  }
}

TEST(GoldenTokenizerJson, DecodesAnyIdsAsTheLibrary) {
  const auto all = folders();
  if (all.empty()) {
    GTEST_SKIP() << "no tokenizer.json in " << golden::folder();
  }
  for (const auto& folder : all) {
    const Pipeline pipeline = pipeline_of(folder / "tokenizer.json");
    for (const Json& record : lines_of(folder / "decode.jsonl")) {
      SCOPED_TRACE(folder.filename().string() + ": " + record.dump());
      const auto ids = record.at("ids").get<std::vector<std::int32_t>>();

      EXPECT_EQ(Json(pipeline.decode(ids)), record.at("decoded"));
      EXPECT_EQ(Json(pipeline.decode(ids, /*skip_special=*/true)),
                record.at("decoded_skip_special"));
    }
  }
}

TEST(GoldenTokenizerJson, ReadsTheNewerLayoutOfLlama2) {
  const auto all = folders();
  if (all.empty()) {
    GTEST_SKIP() << "no tokenizer.json in " << golden::folder();
  }
  for (const auto& folder : all) {
    if (!fs::exists(folder / "v5" / "tokenizer.json")) continue;
    const Pipeline pipeline = pipeline_of(folder / "v5" / "tokenizer.json");
    for (const Json& record : lines_of(folder / "cases.jsonl")) {
      SCOPED_TRACE(folder.filename().string() + ": " + record.at("text").dump());
      const Json expected = record.contains("ids_v5_without_special")
                                ? record["ids_v5_without_special"]
                                : record.at("ids_without_special");

      EXPECT_EQ(Json(pipeline.encode(record.at("text").get<std::string>(), false).ids), expected);
    }
  }
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// The sections "truncation" and "padding" of a tokenizer.json against the tokenizers library.
#include "tessera/text/tokenizers/limits.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/text/tokenizers/pipeline.h"

namespace tessera::text::tokenizers {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::HasSubstr;

/// Written by reference_limits.py.
Json recorded() {
  return Json::parse(files::read(tessera::test::source_dir() / "tests/text/limits/cases.json"));
}

Pipeline::Limited encoded(const Json& file, const Json& one) {
  Json whole = file;
  whole["truncation"] = one.at("truncation");
  whole["padding"] = one.at("padding");
  const Pipeline pipeline(whole, "tokenizer.json");
  const auto first = one.at("first").get<std::string>();
  const bool special = one.at("special").get<bool>();
  if (one.at("second").is_null()) return pipeline.encode_limited(first, special);
  return pipeline.encode_pair_limited(first, one.at("second").get<std::string>(), special);
}

TEST(TokenizerLimits, CutAndFillUpTextsAsTheLibraryDoes) {
  const Json all = recorded();
  std::size_t compared = 0;
  for (const Json& one : all.at("cases")) {
    if (one.contains("refused")) continue;
    SCOPED_TRACE(one.dump());
    const Pipeline::Limited out = encoded(all.at("file"), one);

    EXPECT_EQ(out.encoding.ids, one.at("ids").get<std::vector<std::int32_t>>());
    EXPECT_EQ(out.encoding.type_ids, one.at("types").get<std::vector<std::int32_t>>());
    EXPECT_EQ(out.encoding.tokens, one.at("tokens").get<std::vector<std::string>>());
    EXPECT_EQ(out.attention_mask, one.at("mask").get<std::vector<std::uint8_t>>());
    using Offsets = std::vector<std::pair<std::int64_t, std::int64_t>>;
    EXPECT_EQ(out.encoding.offsets, one.at("offsets").get<Offsets>());
    ++compared;
  }
  EXPECT_GT(compared, 500U);
}

TEST(TokenizerLimits, RefuseTextsThatTheLibraryRefuses) {
  const Json all = recorded();
  std::size_t refused = 0;
  for (const Json& one : all.at("cases")) {
    if (!one.contains("refused")) continue;
    SCOPED_TRACE(one.dump());
    EXPECT_THROW((void)encoded(all.at("file"), one), Error);
    ++refused;
  }
  EXPECT_GT(refused, 50U);
}

TEST(TokenizerLimits, RefuseFalseSections) {
  Json file = recorded().at("file");
  const auto refusal = [&](const char* section, const Json& value) -> std::string {
    Json whole = file;
    whole[section] = value;
    try {
      (void)Pipeline(whole, "tokenizer.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };

  EXPECT_THAT(refusal("truncation", {{"max_length", -1}}), HasSubstr("max_length -1"));
  EXPECT_THAT(refusal("truncation", {{"max_length", 4}, {"strategy", "Middle"}}),
              HasSubstr("Middle"));
  EXPECT_THAT(refusal("truncation", {{"max_length", 4}, {"direction", "Up"}}), HasSubstr("Up"));
  EXPECT_THAT(refusal("padding", {{"strategy", {{"Fixed", 1e12}}}}), HasSubstr("Fixed"));
  EXPECT_THAT(refusal("padding", {{"strategy", "Always"}}), HasSubstr("strategy"));
}

}  // namespace
}  // namespace tessera::text::tokenizers

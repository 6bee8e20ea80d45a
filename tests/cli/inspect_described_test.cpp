// SPDX-License-Identifier: Apache-2.0
// What tessera inspect shows of a tokenizer.json and of an ONNX file.
#include "tessera/cli/inspect_described.h"

#include <map>
#include <string>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/text/tokenizer.h"

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;

TEST(InspectDescribed, NamesThePartsOfATokenizer) {
  const files::TempDir dir;
  const auto path = dir.path() / "tokenizer.json";
  files::write_atomic(path, text::byte_tokenizer_json());

  const auto found = facts_of_tokenizer(path);
  const Outcome shown = run_program({"inspect", path.string()});

  ASSERT_TRUE(found.has_value());
  std::map<std::string, json::Value> facts(found->begin(), found->end());
  EXPECT_EQ(facts.at("model").as_string(), "BPE");
  EXPECT_EQ(facts.at("tokens").as_integer(), 256);
  EXPECT_EQ(facts.at("merges").as_integer(), 0);
  EXPECT_EQ(facts.at("added tokens").as_integer(), 1);
  EXPECT_EQ(facts.at("normalizer").as_string(), "none");
  EXPECT_EQ(facts.at("pre-tokenizer").as_string(), "ByteLevel");
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("tokens       256"));
  files::write_atomic(path, R"({"model": "gpt2"})");
  EXPECT_FALSE(facts_of_tokenizer(path).has_value());
}

TEST(InspectDescribed, ListsTheTensorsOfOnnx) {
  const files::TempDir dir;
  const auto path = dir.path() / "m.onnx";
  // ir_version 9, a graph with the initializer w: two floats, of which 8 bytes are stored.
  const std::string tensor =
      "\x08\x02\x10\x01\x42\x01w\x4a\x08"
      "12345678";
  const std::string graph = std::string("\x2a") + static_cast<char>(tensor.size()) + tensor;
  files::write_atomic(path, std::string("\x08\x09\x3a") + static_cast<char>(graph.size()) + graph);

  const Outcome shown = run_program({"inspect", path.string()});

  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("ONNX, version 9"));
  EXPECT_THAT(shown.out, HasSubstr("FLOAT"));
  EXPECT_THAT(shown.out, HasSubstr("[2]"));
}

}  // namespace
}  // namespace tessera::cli

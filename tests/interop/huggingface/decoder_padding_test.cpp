// SPDX-License-Identifier: Apache-2.0
// transformers refuses a batch for a decoder that classifies and has no id of padding.
#include "tessera/interop/huggingface/decoder_padding.h"

#include <string>

#include <gtest/gtest.h>

namespace tessera::interop {
namespace {

struct Row {
  const char* config;
  bool says_tokenizer, brought;
  std::string id, pad_token;  ///< as JSON; empty: no such key
};

TEST(DecoderPadding, IsNamedForClassifiersAndForNoOthers) {
  const std::string classifier = R"("architectures": ["GPT2ForSequenceClassification"])";
  for (const Row& row :
       {Row{R"({"architectures": ["GPT2LMHeadModel"], "eos_token_id": 5})",
            true,
            false,
            "null",
            ""},
        Row{R"({"architectures": ["GPT2ForTokenClassification"]})", true, false, "null", ""},
        Row{R"({)", true, false, "0", "\"\\u0000\""},
        Row{R"({)", true, true, "0", ""},
        Row{R"({"eos_token_id": 5, )", false, true, "5", ""},
        Row{R"({"pad_token_id": 7, )", true, true, "7", ""},
        Row{R"({"pad_token_id": null, "eos_token_id": 5, )", false, true, "5", ""}}) {
    SCOPED_TRACE(row.config);
    std::string text = row.config;
    if (!text.ends_with("}")) text += classifier + "}";
    json::Value config = json::parse(text, "config.json");
    models::ModelSource source;
    source.says_tokenizer = row.says_tokenizer;
    source.tokenizer.type = "byte";
    TextFiles files = {{"tokenizer_config.json", R"({"eos_token": "\u0000"})"}};

    say_padding(source, config, files, row.brought);

    EXPECT_EQ(config.find("pad_token_id")->dump(), row.id);
    const json::Value settings = json::parse(files.front().second, "tokenizer_config.json");
    const json::Value* const pad = settings.find("pad_token");
    EXPECT_EQ(pad != nullptr ? pad->dump() : "", row.pad_token);
  }
}

}  // namespace
}  // namespace tessera::interop

// SPDX-License-Identifier: Apache-2.0
// The ids of a run's tokens in the files of its export.
#include "tessera/interop/huggingface/token_ids.h"

#include "support/special_tokens.h"
#include <gtest/gtest.h>

namespace tessera::interop {
namespace {

/// A run whose tokenizer is the folder's.
models::ModelSource run_of(const tessera::test::SpecialTokens& folder) {
  models::ModelSource out;
  out.folder = "no folder";
  out.tokenizer = {.type = "file", .vocab = folder.file(), .merges = ""};
  return out;
}

TEST(TokenIds, OfAnExportAreAllThatEndAnAnswer) {
  const tessera::test::SpecialTokens folder({"<eos>", "<turn_end>", "<bos>"});
  folder.write("tokenizer_config.json", R"({"eos_token": "<eos>"})");

  EXPECT_EQ(token_ids_of(run_of(folder)).find("eos_token_id")->dump(), "256");

  folder.write("chat_template.jinja",
               "{% for m in messages %}{{ m.content }}<turn_end>\n{% endfor %}");

  const json::Value ids = token_ids_of(run_of(folder));
  EXPECT_EQ(ids.find("eos_token_id")->dump(), "[256,257]");
  EXPECT_EQ(ids.find("bos_token_id")->dump(), "256") << "the end of a text, if nothing begins one";

  folder.write("tokenizer_config.json", R"({"eos_token": "<eos>", "bos_token": "<bos>"})");
  EXPECT_EQ(token_ids_of(run_of(folder)).find("bos_token_id")->dump(), "258");
}

}  // namespace
}  // namespace tessera::interop

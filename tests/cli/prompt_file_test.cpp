// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/prompt_file.h"

#include <string>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

class PromptFiles : public testing::Test {
 protected:
  files::TempDir folder_;
  std::string in_ = (folder_.path() / "in.jsonl").string();
  std::string out_ = (folder_.path() / "out.jsonl").string();

  void SetUp() override {
    files::write_atomic(in_,
                        R"({"id": "q7", "prompt": "a", "text": "reference"})"
                        "\n"
                        R"({"prompt": "b", "adapter": null, "n": 2.50})"
                        "\n");
  }
};

TEST_F(PromptFiles, KeepTheOtherMembersOfEachLine) {
  const PromptFile file = open_prompt_file(in_, out_);

  ASSERT_EQ(file.others.size(), 2U);
  EXPECT_EQ(file.others[0].dump(), R"({"id":"q7","text":"reference"})");
  EXPECT_EQ(file.others[1], json::parse(R"({"adapter": null, "n": 2.5})", "test"));
  // With adapters, "adapter" is the command's own member.
  EXPECT_EQ(open_prompt_file(in_, out_, {"x"}).others[1], json::parse(R"({"n": 2.5})", "test"));
}

TEST_F(PromptFiles, GoOnBehindLinesWithTheSameMembers) {
  const std::string line =
      R"({"prompt": "a", "text": "made", "tokens": [1], "ended": true, "id": "q7", "given_text": "reference"})";
  files::write_atomic(out_, line + "\n");

  const MadeLines made = open_prompt_file(in_, out_).made;
  EXPECT_EQ(made.count, 1U);
  EXPECT_EQ(made.bytes, line.size() + 1);
}

// The command may still be refused, for its model, its options or its prompts.
TEST_F(PromptFiles, DoNotChangeAnOutputWhenTheyAreOpened) {
  const std::string held =
      R"({"prompt": "a", "text": "made", "tokens": [1], "ended": true, "id": "q7", "given_text": "reference"})"
      "\n{\"prompt\": \"b";
  files::write_atomic(out_, held);

  EXPECT_EQ(open_prompt_file(in_, out_).made.bytes, held.find('\n') + 1);

  EXPECT_EQ(files::read(out_), held);
}

TEST_F(PromptFiles, RefuseLinesWithOtherMembers) {
  for (
      const char* const line :
      {R"({"prompt": "a", "text": "made", "tokens": [1], "ended": true, "id": "q8", "given_text": "reference"})",
       R"({"prompt": "a", "text": "made", "tokens": [1], "ended": true, "id": "q7"})",
       R"({"prompt": "a"})"}) {
    files::write_atomic(out_, std::string(line) + "\n");

    EXPECT_THROW((void)open_prompt_file(in_, out_), Error) << line;
  }
}

}  // namespace
}  // namespace tessera::cli

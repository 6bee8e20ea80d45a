// SPDX-License-Identifier: Apache-2.0
// Models on this machine, by the names that they have on Hugging Face.
#include <cstdlib>
#include <string>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class NamedModels : public testing::Test {
 protected:
  NamedModels() {
    setenv("TESSERA_MODELS", box_.path().c_str(), 1);
    setenv("HF_HUB_CACHE", (box_.path() / "no-cache").c_str(), 1);
  }
  ~NamedModels() override {
    unsetenv("TESSERA_MODELS");
    unsetenv("HF_HUB_CACHE");
  }
  void model(const std::string& name, const std::string& config) {
    const files::fs::path folder = box_.path() / name;
    files::fs::create_directories(folder);
    files::write_atomic(folder / "config.json", config);
  }
  files::TempDir box_;
};

constexpr const char* kTiny = R"({"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8,
  "vocab_size": 16, "n_positions": 4})";
// Token and position embeddings, two norms, attention, feed-forward, last norm.
constexpr std::int64_t kTinyParameters =
    16 * 8 + 4 * 8 + 2 * 16 + (8 * 24 + 24) + (8 * 8 + 8) + (8 * 32 + 32) + (32 * 8 + 8) + 16;

TEST_F(NamedModels, AreListedWithTheirSize) {
  model("acme/tiny", kTiny);
  model("acme/broken", "{");

  const Outcome table = run_program({"models"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("acme/tiny"), HasSubstr("gpt2"), HasSubstr("acme/broken")));

  const Outcome o = run_program({"models", "--json"});
  const json::Value list = json::parse_strict(o.out, "stdout");
  ASSERT_EQ(list.items().size(), 2U);
  EXPECT_THAT(list.items()[0].find("why_unusable")->as_string(), HasSubstr("config.json"));
  EXPECT_EQ(list.items()[1].find("parameters")->as_integer(), kTinyParameters);
  EXPECT_EQ(list.items()[1].find("training_bytes")->as_integer(), 16 * kTinyParameters);
}

TEST_F(NamedModels, AreWhereAModelIsAskedForAndWhatIsMissingNamesTheCommandThatFetchesIt) {
  model("acme/tiny", kTiny);

  EXPECT_THAT(run_program({"plan", "--estimate", "zero2", "--model", "acme/tiny"}).out,
              HasSubstr("In tessera"));
  EXPECT_THAT(run_program({"generate", "acme/other", "--prompt", "a"}).err,
              HasSubstr("hf download acme/other"));
  EXPECT_THAT(run_program({"models"}).out, Not(HasSubstr("other")));
}

TEST_F(NamedModels, AnEmptyListSaysSo) {
  EXPECT_THAT(run_program({"models"}).out, HasSubstr("no models"));
}

}  // namespace
}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/model_names.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::config {
namespace {

TEST(ModelNames, BecomeFoldersAtAnyDepthAndOtherValuesStay) {
  const files::TempDir box;
  files::fs::create_directories(box.path() / "owner" / "small");
  setenv("TESSERA_MODELS", box.path().c_str(), 1);
  json::Value source = json::parse(R"({
    "model": {"from": "owner/small", "preset": "owner/small"},
    "distill": {"teacher": "small@main"},
    "task": {"params": {"rewards": [{"from": "owner/small"}, {"from": "owner/absent"}, {"from": 3}]}},
    "data": {"train": "owner/small"}})",
                                   "c.json");
  files::fs::create_directories(box.path() / "small");

  resolve_model_names(source);
  unsetenv("TESSERA_MODELS");

  const std::string folder = (box.path() / "owner" / "small").string();
  const json::Value& from = *source.find("model")->find("from");
  EXPECT_EQ(from.as_string(), folder);
  EXPECT_EQ(from.place.line, 2) << "an error names the line of the file";
  EXPECT_EQ(source.find("model")->find("preset")->as_string(), "owner/small");
  EXPECT_EQ(source.find("distill")->find("teacher")->as_string(), (box.path() / "small").string());
  const auto& rewards = source.find("task")->find("params")->find("rewards")->items();
  EXPECT_EQ(rewards[0].find("from")->as_string(), folder);
  EXPECT_EQ(rewards[1].find("from")->as_string(), "owner/absent");
  EXPECT_EQ(source.find("data")->find("train")->as_string(), "owner/small");
}

}  // namespace
}  // namespace tessera::config

// SPDX-License-Identifier: Apache-2.0
// Which runs may go on from another program's training.
#include "tessera/planner/foreign_training.h"

#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/foreign_write.h"

namespace tessera::planner {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kInterop = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/reference/interop";

/// A plan for the model of the recorded trainings.
Plan plan_of(const std::string& optimizer, const std::string& checkpoint = "{}") {
  const json::Value hf =
      json::parse_strict(files::read(kInterop / "torch_tutorial/config.json"), "config.json");
  const models::Family& family = models::family_of_hf(hf);
  const models::ModelOptions options = family.options_from_hf(hf);
  config::Problems problems;
  const models::Resolved resolved =
      family.resolve(options, *options.vocab_size, std::nullopt, problems, {});
  problems.raise();
  const std::string config = fmt::format(
      R"({{"data": {{"train": "a.txt", "sequence_length": 16}}, "train_batch_size": 4,
           "trainer": {{"max_steps": 8}}, "run": {{"threads_per_rank": 1}},
           "optimizer": {{"type": "{}"}}, "checkpoint": {}}})",
      optimizer,
      checkpoint);
  return make_plan(json::parse(config, "c.json"), 1, "c.json", resolved.model);
}

std::string refusal(const fs::path& path, const Plan& plan) {
  try {
    open_training(path, plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.text();
  }
  return "";
}

TEST(ForeignTraining, GoesOnUnderTheOptimizerThatItHad) {
  for (const char* same : {"AdamW", "Adam", "FusedAdam"}) {
    EXPECT_EQ(refusal(kInterop / "torch_tutorial", plan_of(same)), "");
    EXPECT_EQ(refusal(kInterop / "deepspeed_z1_fp32", plan_of(same)), "");
  }
}

TEST(ForeignTraining, UnderAnotherOptimizerIsRefused) {
  for (const char* other : {"Lion", "SGD", "Lamb", "NAdam"}) {
    EXPECT_THAT(refusal(kInterop / "deepspeed_z1_fp32", plan_of(other)),
                AllOf(HasSubstr("a training of \"AdamW\""),
                      HasSubstr(fmt::format("optimizer.type is {}", other))));
  }
  // The file does not say whose moments they are.
  EXPECT_THAT(refusal(kInterop / "torch_tutorial", plan_of("Lion")),
              HasSubstr("holds exp_avg_sq of its optimizer, and Lion keeps none"));
  EXPECT_THAT(refusal(kInterop / "torch_tutorial", plan_of("SGD")), HasSubstr("holds exp_avg"));
}

TEST(ForeignTraining, IsTheUniversalOneWhereItIsAskedFor) {
  const std::string universal = R"({"load_universal": true})";
  EXPECT_THAT(refusal(kInterop / "deepspeed_z1_fp32", plan_of("AdamW", universal)),
              AllOf(HasSubstr("checkpoint.load_universal is true"),
                    HasSubstr("holds no universal checkpoint")));

  const files::TempDir dir;
  fs::copy(kInterop / "deepspeed_z1_fp32", dir.path(), fs::copy_options::recursive);
  checkpoint::Foreign later = *checkpoint::open_foreign(dir.path());
  later.step += 2;
  checkpoint::write_universal(dir.path(), later, [](auto) {});

  EXPECT_EQ(open_training(dir.path(), plan_of("AdamW")).meta().step, later.step - 2);
  EXPECT_EQ(open_training(dir.path(), plan_of("AdamW", universal)).meta().step, later.step);
}

TEST(ForeignTraining, WithFrozenParametersIsRefusedByTheirNames) {
  checkpoint::Foreign training = *checkpoint::open_foreign(kInterop / "deepspeed_z1_fp32");
  const Plan plan = plan_of("AdamW");
  for (auto& [state, tensors] : training.state)
    std::erase_if(tensors, [](const auto& tensor) { return tensor.name.ends_with("wpe.weight"); });

  try {
    as_checkpoint(training, models::families().get("gpt2"), plan.model, 16, 4);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("frozen"), HasSubstr("transformer.wpe.weight")));
  }
}

}  // namespace
}  // namespace tessera::planner

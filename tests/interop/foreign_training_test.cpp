// SPDX-License-Identifier: Apache-2.0
// Tests which runs may continue another program's training.
#include "tessera/interop/foreign_training.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/source_dir.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/torch/value.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kInterop = tessera::test::source_dir() / "tests/golden/reference/interop";

/// A plan for the model of the recorded trainings.
planner::Plan plan_of(const std::string& optimizer, const std::string& checkpoint = "{}") {
  const json::Value hf =
      json::parse_strict(files::read(kInterop / "torch_tutorial/config.json"), "config.json");
  const models::ModelOptions options = models::options_from_hf(hf);
  config::Problems problems;
  const models::Resolved resolved =
      models::resolve(options, *options->vocab_size, std::nullopt, problems, {});
  problems.raise();
  const std::string config = fmt::format(
      R"({{"data": {{"train": "a.txt", "sequence_length": 16}}, "train_batch_size": 4,
           "trainer": {{"max_steps": 8}}, "run": {{"threads_per_rank": 1}},
           "optimizer": {{"type": "{}"}}, "checkpoint": {}}})",
      optimizer,
      checkpoint);
  return planner::make_plan(json::parse(config, "c.json"), 1, "c.json", resolved.model);
}

std::string refusal(const fs::path& path,
                    const planner::Plan& plan,
                    Error::Kind kind = Error::Kind::Config) {
  try {
    open_training(path, plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.text();
  }
  return "";
}

TEST(ForeignTraining, ContinuesUnderTheOptimizerThatItHad) {
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
  EXPECT_THAT(refusal(kInterop / "torch_tutorial", plan_of("Lion")),
              HasSubstr("a training of \"AdamW\""));
  // A file of an older torch doesn't name the parameters of its moments.
  const files::TempDir dir;
  Foreign older = *open_foreign(kInterop / "torch_tutorial");
  older.config = json::Value::object();
  write_torch_loop(dir.path() / "model_5.pth", dir.path() / "optimizer_5.pth", older, [](auto) {});
  EXPECT_THAT(refusal(dir.path(), plan_of("Lion")),
              HasSubstr("holds exp_avg_sq of its optimizer, and Lion keeps none"));
  EXPECT_THAT(refusal(dir.path(), plan_of("SGD")), HasSubstr("holds exp_avg"));
}

/// The recorded loop with no other states of its optimizer than these.
void write_loop(const fs::path& folder, const std::vector<std::string>& states) {
  const Foreign training = *open_foreign(kInterop / "torch_tutorial");
  std::vector<TorchValue::Item> kept;
  std::vector<TorchValue> numbers;
  for (std::size_t i = 0; i < training.weights.size(); ++i) {
    std::vector<TorchValue::Item> of_one;
    for (const std::string& state : states)
      of_one.emplace_back(state, TorchValue::tensor(training.state.at(state)[i]));
    kept.emplace_back(std::to_string(i), TorchValue::dict(std::move(of_one)));
    numbers.push_back(TorchValue::integer(static_cast<std::int64_t>(i)));
  }
  TorchValue group = TorchValue::dict({{"params", TorchValue::list(std::move(numbers))}});
  fs::copy(kInterop / "torch_tutorial/model_000005.pth", folder);
  write_torch_file(
      folder / "optimizer_000005.pth",
      TorchValue::dict({{"state", TorchValue::dict(std::move(kept), /*numbered=*/true)},
                        {"param_groups", TorchValue::list({std::move(group)})}}));
}

TEST(ForeignTraining, WithoutStateContinuesUnderAnOptimizerThatKeepsNoneAlone) {
  const files::TempDir dir;
  write_loop(dir.path(), {});

  EXPECT_EQ(refusal(dir.path(), plan_of("SGD")), "");
  for (const char* keeps : {"AdamW", "Lion", "Muon"}) {
    EXPECT_THAT(refusal(dir.path(), plan_of(keeps), Error::Kind::Format),
                AllOf(HasSubstr("without an optimizer's state there is nothing to go on with"),
                      HasSubstr("model.from")));
  }
}

TEST(ForeignTraining, WithoutAStateThatTheOptimizerKeepsIsRefused) {
  const files::TempDir dir;
  write_loop(dir.path(), {"exp_avg"});

  EXPECT_THAT(refusal(dir.path(), plan_of("AdamW")),
              HasSubstr("holds no exp_avg_sq of its optimizer, and AdamW keeps it"));
}

TEST(ForeignTraining, IsTheUniversalOneWhereItIsAskedFor) {
  const std::string universal = R"({"load_universal": true})";
  EXPECT_THAT(refusal(kInterop / "deepspeed_z1_fp32", plan_of("AdamW", universal)),
              AllOf(HasSubstr("checkpoint.load_universal is true"),
                    HasSubstr("holds no universal checkpoint")));

  const files::TempDir dir;
  fs::copy(kInterop / "deepspeed_z1_fp32", dir.path(), fs::copy_options::recursive);
  Foreign later = *open_foreign(dir.path());
  later.step += 2;
  write_universal(dir.path(), later, [](auto) {});

  EXPECT_EQ(open_training(dir.path(), plan_of("AdamW")).meta().step, later.step - 2);
  EXPECT_EQ(open_training(dir.path(), plan_of("AdamW", universal)).meta().step, later.step);
}

TEST(ForeignTraining, WithFrozenParametersIsRefusedByTheirNames) {
  Foreign training = *open_foreign(kInterop / "deepspeed_z1_fp32");
  const planner::Plan plan = plan_of("AdamW");
  for (auto& [state, tensors] : training.state)
    std::erase_if(tensors, [](const auto& tensor) { return tensor.name.ends_with("wpe.weight"); });

  try {
    as_checkpoint(training, models::families().get("gpt2"), plan.model().resolved, 16, 4);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("frozen"), HasSubstr("transformer.wpe.weight")));
  }
}

}  // namespace
}  // namespace tessera::interop

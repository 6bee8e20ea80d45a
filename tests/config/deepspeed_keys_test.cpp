// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/deepspeed_keys.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

struct Taken {
  json::Value left;
  std::string problems;
  std::vector<std::string> notes;
};

Taken take(const std::string& text) {
  Taken out;
  Problems problems;
  out.left = take_deepspeed_keys(json::parse(text, "ds.json"), problems, out.notes);
  try {
    problems.raise();
  } catch (const Error& error) {
    out.problems = error.text();
  }
  return out;
}

TEST(DeepSpeedTable, HasEachKeyOnceAndAnEntryForEverySection) {
  std::set<std::string_view> seen;
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    EXPECT_TRUE(seen.insert(key.path).second) << key.path;
    const std::size_t dot = key.path.rfind('.');
    EXPECT_TRUE(dot == std::string_view::npos || seen.count(key.path.substr(0, dot)) == 1)
        << key.path;
  }
}

TEST(DeepSpeedTable, IsConsistent) {
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    const bool explains = key.policy == KeyPolicy::Accepted || key.policy == KeyPolicy::Alias;
    EXPECT_TRUE(key.policy != KeyPolicy::NotBuilt || json::parse(key.off, "off").is_array())
        << key.path;
    EXPECT_EQ(explains, !key.about.empty()) << key.path;
  }
}

TEST(DeepSpeedKeys, LeaveWhatIsNotTheirs) {
  const Taken t = take(R"({"model": {"preset": "nano"}, "bf16": {"enabled": true}, "unknown": 1})");

  EXPECT_EQ(t.problems, "");
  EXPECT_EQ(t.left,
            json::parse(R"({"model": {"preset": "nano"}, "bf16": {"enabled": true}, "unknown": 1})",
                        "x"));
}

TEST(DeepSpeedKeys, PassWhereTheyAreSwitchedOff) {
  const Taken t = take(R"({
    "fp16": {"enabled": false, "loss_scale": 0, "initial_scale_power": 16},
    "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "none"}, "cpu_offload": false},
    "parallel": {}, "amp": {"enabled": false}, "flops_profiler": {"enabled": false, "profile_step": 1},
    "activation_checkpointing": {"partition_activations": false, "number_checkpoints": null},
    "sparse_gradients": false, "communication_data_type": "fp32", "compression_training": {}})");

  EXPECT_EQ(t.problems, "");
  EXPECT_EQ(t.left, json::parse(R"({"zero_optimization": {"stage": 0}})", "x"));
}

TEST(DeepSpeedKeys, ParallelOfSizeOnePasses) {
  EXPECT_EQ(
      take(
          R"({"parallel": {"pipeline": 1, "tensor": {"size": 1, "mode": "1d"}, "context": {"size": 1}}})")
          .problems,
      "");
}

// Every row is refused as not built yet, at this path.
class DeepSpeedNotBuilt : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(DeepSpeedNotBuilt, SaysSoWithItsPath) {
  const Taken t = take(GetParam().first);

  EXPECT_THAT(
      t.problems,
      AllOf(HasSubstr("not built yet"), HasSubstr(GetParam().second), HasSubstr("ds.json:1:")));
}

INSTANTIATE_TEST_SUITE_P(
    Keys,
    DeepSpeedNotBuilt,
    testing::Values(
        std::pair(R"({"fp16": {"enabled": true}})", "fp16.enabled"),
        std::pair(R"({"amp": {"enabled": true}})", "amp.enabled"),
        std::pair(R"({"zero_optimization": {"offload_param": {"device": "cpu"}}})",
                  "zero_optimization.offload_param.device"),
        std::pair(R"({"zero_optimization": {"zero_quantized_weights": true}})",
                  "zero_optimization.zero_quantized_weights"),
        std::pair(R"({"parallel": {"pipeline": 2}})", "parallel.pipeline"),
        std::pair(R"({"parallel": {"tensor": {"size": 4, "mode": "2d"}}})", "parallel.tensor"),
        std::pair(R"({"parallel": {"sequence": true}})", "parallel.sequence"),
        std::pair(R"({"activation_checkpointing": {"cpu_checkpointing": true}})",
                  "activation_checkpointing.cpu_checkpointing"),
        std::pair(R"({"tensorboard": {"enabled": true}})", "tensorboard.enabled"),
        std::pair(R"({"sparse_attention": {"mode": "fixed"}})", "sparse_attention"),
        std::pair(R"({"communication_data_type": "fp16"})", "communication_data_type")));

TEST(DeepSpeedKeys, WithoutMeaningAreToldOnceEach) {
  const Taken t =
      take(R"({"zero_optimization": {"stage": 1, "overlap_comm": true, "reduce_bucket_size": 5e8},
                           "prescale_gradients": false})");

  EXPECT_EQ(t.problems, "");
  ASSERT_THAT(t.notes, SizeIs(3));
  EXPECT_THAT(t.notes[0], HasSubstr("zero_optimization.overlap_comm"));
  EXPECT_EQ(t.left, json::parse(R"({"zero_optimization": {"stage": 1}})", "x"));
}

TEST(DeepSpeedKeys, AutoCountsAsNotGiven) {
  const Taken t = take(
      R"({"train_batch_size": "auto", "gradient_clipping": "auto", "zero_optimization": {"stage": 1,
                           "reduce_bucket_size": "auto"}, "fp16": {"enabled": "auto"}})");

  EXPECT_EQ(t.problems, "");
  EXPECT_EQ(t.left, json::parse(R"({"zero_optimization": {"stage": 1}})", "x"));
}

TEST(DeepSpeedKeys, UnknownOnesInsideOfBlocksComeWithTheNearest) {
  EXPECT_THAT(take("{\"zero_optimization\": {\"overlap_com\": true}}").problems,
              AllOf(HasSubstr("ds.json:1:24"),
                    HasSubstr("zero_optimization.overlap_com"),
                    HasSubstr("\"overlap_comm\"")));
  EXPECT_THAT(take(R"({"fp16": {"enabled": false, "los_scale": 0}})").problems,
              HasSubstr("\"loss_scale\""));
}

TEST(DeepSpeedKeys, WrongTypesAreRefusedEvenWhereNothingIsOn) {
  EXPECT_THAT(take(R"({"zero_optimization": {"overlap_comm": "yes"}})").problems,
              HasSubstr("true or false"));
  EXPECT_THAT(take(R"({"fp16": {"loss_scale": true}})").problems, HasSubstr("a number"));
  EXPECT_THAT(take(R"({"fp16": false})").problems, HasSubstr("an object"));
}

TEST(DeepSpeedKeys, OtherNamesMoveToTheirKey) {
  const Taken t =
      take(R"({"dataloader_drop_last": true, "memory_break_down": true, "data": {"train": "a"}})");

  EXPECT_EQ(t.problems, "");
  EXPECT_EQ(
      t.left,
      json::parse(R"({"data": {"train": "a", "drop_last": true}, "memory_breakdown": true})", "x"));
}

TEST(DeepSpeedKeys, TwoNamesOfOneKeyMustAgree) {
  EXPECT_EQ(take(R"({"gradient_accumulation_steps": 4, "NUM_MICRO_BATCHES": 4})").problems, "");
  EXPECT_THAT(take(R"({"gradient_accumulation_steps": 4, "NUM_MICRO_BATCHES": 8})").problems,
              AllOf(HasSubstr("4"), HasSubstr("8"), HasSubstr("twice")));
}

}  // namespace
}  // namespace tessera::config

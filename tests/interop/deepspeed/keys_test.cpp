// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/keys.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::interop {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::UnorderedElementsAre;

// Keys that tessera's options might have.
const std::vector<std::string> kOwn = {"model",
                                       "model.preset",
                                       "data",
                                       "data.train",
                                       "data.drop_last",
                                       "optimizer",
                                       "optimizer.type",
                                       "optimizer.params",
                                       "optimizer.decay_all",
                                       "gradient_clipping",
                                       "bf16",
                                       "bf16.enabled",
                                       "zero_optimization",
                                       "zero_optimization.stage",
                                       "zero_optimization.offload_optimizer",
                                       "zero_optimization.offload_param",
                                       "activation_checkpointing",
                                       "activation_checkpointing.partition_activations",
                                       "tensorboard",
                                       "tensorboard.enabled",
                                       "comet",
                                       "comet.enabled",
                                       "checkpoint",
                                       "checkpoint.every"};

struct Taken {
  json::Value left;
  std::string problems;
  std::vector<config::TakenKey> accepted, automatic;
};

Taken take(const std::string& text) {
  config::Problems problems;
  const json::Value source = with_new_names(json::parse(text, "ds.json"), problems);
  config::TakenKeys taken = take_deepspeed_keys(source, kOwn, problems);
  Taken out{std::move(taken.left), "", std::move(taken.accepted), std::move(taken.automatic)};
  try {
    problems.raise();
  } catch (const Error& error) {
    out.problems = error.text();
  }
  return out;
}

std::vector<std::string> paths_of(const std::vector<config::TakenKey>& keys) {
  std::vector<std::string> out;
  for (const config::TakenKey& key : keys)
    out.push_back(key.path);
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

TEST(DeepSpeedTable, GivesAReasonForEveryUnsupportedKey) {
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    const bool refused = key.policy == KeyPolicy::Later || key.policy == KeyPolicy::Never;
    const bool reason =
        refused || key.policy == KeyPolicy::Accepted || key.policy == KeyPolicy::Alias;
    EXPECT_EQ(reason, !key.about.empty()) << key.path;
    EXPECT_EQ(refused, !key.fix.empty()) << key.path;
    EXPECT_TRUE(!refused || json::parse(key.off, "off").is_array()) << key.path;
    EXPECT_TRUE(key.policy == KeyPolicy::Section || key.path.back() == '*' ||
                key.policy != KeyPolicy::Alias || find_deepspeed_key(key.about) != nullptr ||
                key.about == "data.drop_last" || key.about.starts_with("parallel."))
        << key.path;
  }
}

TEST(DeepSpeedKeys, LeaveOtherKeysAlone) {
  const std::string text =
      R"({"model": {"preset": "nano"}, "bf16": {"enabled": true}, "optimizer": {"decay_all": true}})";

  const Taken t = take(text);

  EXPECT_EQ(t.problems, "");
  EXPECT_EQ(t.left, json::parse(text, "x"));
}

TEST(DeepSpeedKeys, PassWhereTheyAreSwitchedOff) {
  const Taken t = take(R"({
    "fp16": {"enabled": false, "loss_scale": 0, "initial_scale_power": 16},
    "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "none"}, "cpu_offload": false},
    "amp": {"enabled": false}, "flops_profiler": {"enabled": false, "profile_step": 1},
    "activation_checkpointing": {"partition_activations": false, "number_checkpoints": null},
    "seq_parallel_communication_data_type": "fp32", "compression_training": {}})");

  EXPECT_EQ(t.problems, "");
  EXPECT_EQ(t.left,
            json::parse(R"({"zero_optimization": {"stage": 0, "offload_optimizer":
                                    {"device": "none"}},
                            "activation_checkpointing": {"partition_activations": false}})",
                        "x"));
}

// Every row is rejected as not built yet, at this path.
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
        std::pair(R"({"seq_parallel_communication_data_type": "fp16"})",
                  "seq_parallel_communication_data_type"),
        std::pair(R"({"curriculum_learning": {"enabled": true}})", "curriculum_learning.enabled"),
        std::pair(
            R"({"compression_training": {"row_pruning": {"shared_parameters": {"enabled": true}}}})",
            "compression_training.row_pruning.shared_parameters.enabled")));

TEST(DeepSpeedKeys, WithoutAnEquivalentNameTheNearestOne) {
  EXPECT_THAT(
      take(R"({"zero_optimization": {"load_from_fp32_weights": false}})").problems,
      AllOf(HasSubstr("zero_optimization.load_from_fp32_weights: not supported here: false"),
            HasSubstr("fp32"),
            HasSubstr("fix: remove it")));
  EXPECT_THAT(take(R"({"sparse_attention": {"mode": "fixed"}})").problems,
              AllOf(HasSubstr("sparse_attention"), HasSubstr("remove the block")));
  EXPECT_THAT(take(R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}})").problems,
              AllOf(HasSubstr("zero_optimization.zenflow"), HasSubstr("changes the results")));
  EXPECT_EQ(
      take(R"({"zero_optimization": {"offload_optimizer": {"super_offload": true}}})").problems,
      "");
  EXPECT_THAT(take(R"({"compile": {"deepcompile": true}})").problems,
              HasSubstr("compile.deepcompile"));
}

TEST(DeepSpeedKeys, OffloadToTheHostIsWhereThingsAre) {
  const Taken t = take(R"({"zero_optimization": {"stage": 2, "offload_optimizer":
      {"device": "cpu", "pin_memory": true}, "offload_param": {"device": "cpu"}}})");

  EXPECT_EQ(t.problems, "");
  EXPECT_THAT(paths_of(t.accepted), ElementsAre("zero_optimization.offload_optimizer.pin_memory"));
  EXPECT_EQ(t.left,
            json::parse(R"({"zero_optimization": {"stage": 2, "offload_optimizer":
                                    {"device": "cpu"}, "offload_param": {"device": "cpu"}}})",
                        "x"));
}

// Keys of monitors never stop a training.
TEST(DeepSpeedKeys, OfMonitorsAndProfilersAreNeverRefused) {
  const Taken t = take(R"({"tensorboard": {"enabled": true, "output_path": "logs", "job_name": "j"},
      "csv_monitor": {"enabled": true}, "wandb": {"enabled": true, "project": "p"},
      "comet": {"enabled": true, "api_key": "secret", "online": true},
      "flops_profiler": {"enabled": true, "profile_step": 1}, "comms_logger": {"enabled": true},
      "wall_clock_breakdown": true, "memory_breakdown": true, "dump_state": true})");

  EXPECT_EQ(t.problems, "");
  for (const config::TakenKey& key : t.accepted)
    EXPECT_THAT(config::note_of(key), testing::Not(HasSubstr("secret")));
  EXPECT_EQ(t.left.find("comet")->find("api_key"), nullptr);
}

TEST(DeepSpeedKeys, WithoutAnEffectAreReportedOnceEach) {
  const Taken t = take(
      R"({"zero_optimization": {"stage": 1, "overlap_comm": true, "allgather_bucket_size": 5e8},
                           "prescale_gradients": false})");

  EXPECT_EQ(t.problems, "");
  ASSERT_THAT(t.accepted, SizeIs(3));
  EXPECT_THAT(config::note_of(t.accepted[0]),
              AllOf(HasSubstr("zero_optimization.overlap_comm"), HasSubstr("no effect here: ")));
  EXPECT_EQ(t.accepted[0].value.key_place.text(), "ds.json:1:36");
  EXPECT_EQ(t.left, json::parse(R"({"zero_optimization": {"stage": 1}})", "x"));
}

TEST(DeepSpeedKeys, AutoIsRemovedFromEveryKey) {
  const Taken t = take(
      R"({"train_batch_size": "auto", "gradient_clipping": "auto", "zero_optimization": {"stage": 1,
          "reduce_bucket_size": "auto"}, "fp16": {"enabled": "auto"},
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": 1e-8}}})");

  EXPECT_EQ(t.problems, "");
  EXPECT_THAT(paths_of(t.automatic),
              ElementsAre("train_batch_size",
                          "gradient_clipping",
                          "zero_optimization.reduce_bucket_size",
                          "fp16.enabled",
                          "optimizer.params.lr"));
  EXPECT_EQ(t.left,
            json::parse(R"({"zero_optimization": {"stage": 1},
                            "optimizer": {"type": "AdamW", "params": {"eps": 1e-8}}})",
                        "x"));
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
  EXPECT_THAT(take(R"({"gradient_predivide_factor": true})").problems, HasSubstr("a number"));
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

TEST(DeepSpeedKeys, OldSwitchesBecomeTheirDevice) {
  const Taken t =
      take(R"({"zero_optimization": {"stage": 3, "cpu_offload": true, "cpu_offload_params": false,
               "stage3_gather_fp16_weights_on_model_save": true}})");

  EXPECT_EQ(t.problems, "");
  EXPECT_THAT(paths_of(t.accepted),
              ElementsAre("zero_optimization.stage3_gather_16bit_weights_on_model_save"));
  EXPECT_THAT(take(R"({"zero_optimization": {"cpu_offload": "yes"}})").problems,
              AllOf(HasSubstr("zero_optimization.cpu_offload"), HasSubstr("true or false")));
}

TEST(DeepSpeedKeys, ABareZeroSwitchIsStageOne) {
  EXPECT_EQ(take(R"({"zero_optimization": true})").left,
            json::parse(R"({"zero_optimization": {"stage": 1}})", "x"));
  EXPECT_EQ(take(R"({"zero_optimization": false})").left,
            json::parse(R"({"zero_optimization": {"stage": 0}})", "x"));
}

TEST(DeepSpeedKeys, TwoNamesOfOneKeyMustAgree) {
  EXPECT_EQ(take(R"({"gradient_accumulation_steps": 4, "NUM_MICRO_BATCHES": 4})").problems, "");
  EXPECT_THAT(take(R"({"gradient_accumulation_steps": 4, "NUM_MICRO_BATCHES": 8})").problems,
              AllOf(HasSubstr("4"), HasSubstr("8"), HasSubstr("old name")));
  EXPECT_THAT(take(R"({"bf16": {"enabled": true}, "bfloat16": {"enabled": false}})").problems,
              AllOf(HasSubstr("bfloat16"), HasSubstr("old name of bf16")));
}

TEST(DeepSpeedKeys, WhatWasTypedWinsUnderWhicheverName) {
  const auto typed = [](json::Value value) {
    value.place = value.key_place = json::Place{"--set x"};
    return value;
  };
  json::Value source = json::parse(
      R"({"gradient_accumulation_steps": 4, "bfloat16": {"enabled": false}})", "ds.json");
  source["NUM_MICRO_BATCHES"] = typed(json::Value::integer(8));
  source["bf16"]["enabled"] = typed(json::Value::boolean(true));
  config::Problems problems;

  const json::Value renamed = with_new_names(source, problems);

  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(renamed,
            json::parse(R"({"gradient_accumulation_steps": 8, "bf16": {"enabled": true}})", "x"));
}

TEST(DeepSpeedKeys, MisspeltOnesComeWithTheirName) {
  EXPECT_THAT(take(R"({"gradient_accumulation_steps ": 4})").problems,
              AllOf(HasSubstr("unknown key"),
                    HasSubstr("remove the space: \"gradient_accumulation_steps\"")));
  EXPECT_THAT(take(R"({"gradient_accumulation": 4})").problems,
              HasSubstr("did you mean \"gradient_accumulation_steps\"?"));
  EXPECT_THAT(take(R"({"prescale_gradient": true})").problems,
              HasSubstr("did you mean \"prescale_gradients\"?"));
  EXPECT_THAT(take(R"({"max_grad_norm": 1.0})").problems,
              HasSubstr("did you mean \"gradient_clipping\"?"));
  EXPECT_THAT(take(R"({"checkpoint": {"evry": 1}})").problems, HasSubstr("\"every\""));
}

TEST(DeepSpeedKeys, AreListedOnceWhereNoneIsNear) {
  const std::string text = take(R"({"zero_optimization": {"qqqqqqqq": true}})").problems;

  EXPECT_THAT(text, HasSubstr("expected one of: stage, "));
  EXPECT_EQ(text.find(", stage,"), std::string::npos) << text;
}

TEST(DeepSpeedKeys, OfAWrongTypeSayWhatToWrite) {
  EXPECT_THAT(take(R"({"prescale_gradients": "yes"})").problems,
              AllOf(HasSubstr("expected true or false, found \"yes\""),
                    HasSubstr("fix: write true or false")));
  EXPECT_THAT(take(R"({"zero_optimization": {"cpu_offload": "yes"}})").problems,
              HasSubstr("fix: write true or false"));
}

TEST(DeepSpeedKeys, InPlaceOfABlockAreShortForOneOfItsKeys) {
  EXPECT_THAT(take(R"({"bf16": true})").problems,
              AllOf(HasSubstr("bf16: expected an object, found true"),
                    HasSubstr("fix: write {\"enabled\": true}")));
  EXPECT_THAT(take(R"({"bfloat16": true})").problems, HasSubstr("write {\"enabled\": true}"));
  EXPECT_THAT(take(R"({"fp16": false})").problems, HasSubstr("write {\"enabled\": false}"));
  EXPECT_THAT(take(R"({"optimizer": "AdamW"})").problems, HasSubstr("write {\"type\": \"AdamW\"}"));
  EXPECT_THAT(take(R"({"zero_optimization": 2})").problems, HasSubstr("write {\"stage\": 2}"));
}

TEST(DeepSpeedKeys, InTheWrongBlockComeWithTheRightOne) {
  EXPECT_THAT(take(R"({"optimizer": {"lr": 1e-3}})").problems,
              HasSubstr("did you mean optimizer.params.lr?"));
  EXPECT_THAT(take(R"({"zero_optimization": {"drop_last": true}})").problems,
              HasSubstr("did you mean data.drop_last?"));
}

TEST(DeepSpeedKeys, HaveTheNamesOfFieldsTooWhereThoseDiffer) {
  const Taken t = take(R"({"bfloat16": {"enabled": true, "check_overflow": false},
      "zero_optimization": {"module_granularity_threshold": 5, "allgather_sequential": true},
      "tensor_parallel": {"replace_with_kernel_inject": false}})");

  EXPECT_EQ(t.problems, "");
  EXPECT_THAT(paths_of(t.accepted),
              UnorderedElementsAre("bf16.check_grad_overflow",
                                   "zero_optimization.stage3_module_granularity_threshold",
                                   "zero_optimization.stage3_allgather_sequential",
                                   "tensor_parallel.kernel_inject"));
}

TEST(DeepSpeedFiles, ArePureWithoutAKeyOfOurs) {
  const auto pure = [](const char* text) {
    return is_pure_deepspeed(json::parse(text, "ds.json"), kOwn);
  };

  EXPECT_TRUE(pure(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}, "nobodys": 1})"));
  EXPECT_FALSE(pure(R"({"train_batch_size": 8, "data": {"train": "a.txt"}})"));
  EXPECT_FALSE(pure(R"({"train_batch_size": 8, "optimizer": {"decay_all": true}})"));
  EXPECT_FALSE(pure(R"({"NUM_MICRO_BATCHES": 8})"));
}

}  // namespace
}  // namespace tessera::interop

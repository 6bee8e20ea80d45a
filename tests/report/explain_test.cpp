// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/explain.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/config/overrides.h"
#include "tessera/planner/draft.h"

namespace tessera::report {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Lt;
using testing::Not;
using testing::SizeIs;

Explanation explain(const std::string& text, std::optional<int> ranks = std::nullopt) {
  return explain_config(json::parse(text, "ds.json"), ranks, "ds.json");
}

const ExplainedKey& key_of(const Explanation& explanation, const std::string& path) {
  static const ExplainedKey absent;
  for (const ExplainedKey& key : explanation.keys) {
    if (key.path == path) return key;
  }
  ADD_FAILURE() << path << " is not explained";
  return absent;
}

TEST(Explained, ValuesSayWhereTheyComeFrom) {
  json::Value source = json::parse(R"({
  "train_batch_size": 16,
  "train_micro_batch_size_per_gpu": 4,
  "bfloat16": {"enabled": true}
})",
                                   "ds.json");
  config::set_key(source, "optimizer.lr", json::Value::number(3e-5), "--learning_rate");
  config::apply_override(source, "trainer.seed=7");

  const Explanation e = explain_config(source, 2, "ds.json");

  EXPECT_EQ(key_of(e, "train_batch_size").source, "ds.json:2:23");
  EXPECT_EQ(key_of(e, "bf16.enabled").source, "ds.json:4:27");
  EXPECT_EQ(key_of(e, "optimizer.params.lr").source, "--learning_rate");
  EXPECT_EQ(key_of(e, "optimizer.params.lr").text, "3e-05");
  EXPECT_EQ(key_of(e, "trainer.seed").source, "--set trainer.seed=7");
  EXPECT_EQ(key_of(e, "optimizer.params.eps").source, "default");
  EXPECT_EQ(key_of(e, "steps_per_print").text, "10");
  EXPECT_EQ(key_of(e, "gradient_accumulation_steps").source,
            "derived: train_batch_size 16 = micro 4 x accumulation 2 x ranks 2");
  EXPECT_EQ(key_of(e, "zero_optimization.stage").source,
            "derived: 2 ranks and no zero_optimization block");
  EXPECT_TRUE(e.trains());
}

TEST(Explained, ACommonDropoutThatNothingUsesIsLeftOut) {
  const auto shown = [](const std::string& dropouts) {
    const Explanation e =
        explain(R"({"model": {"num_layers": 1, "hidden_size": 8, "num_heads": 1, )" + dropouts +
                R"(}, "data": {"train": "a.txt", "sequence_length": 8},
                                  "train_batch_size": 1})");
    std::string out;
    for (const ExplainedKey& key : e.keys) {
      if (key.path.starts_with("model.") && key.path.ends_with("dropout"))
        out += key.path + "=" + key.text + " ";
    }
    return out;
  };

  EXPECT_EQ(shown(R"("embedding_dropout": 0.1, "attention_dropout": 0.2, "residual_dropout": 0.3)"),
            "model.embedding_dropout=0.1 model.attention_dropout=0.2 model.residual_dropout=0.3 "
            "model.classifier_dropout=0.1 ");
  EXPECT_THAT(shown(R"("embedding_dropout": 0.1)"), HasSubstr("model.dropout=0 "));
  EXPECT_THAT(shown(R"("dropout": 0.1)"), HasSubstr("model.dropout=0.1 "));
}

TEST(Explained, RanksAreTheFewestThatCloseTheArithmetic) {
  const std::string triple = R"({"train_batch_size": 48, "train_micro_batch_size_per_gpu": 4,
                                 "gradient_accumulation_steps": 3})";

  const Explanation fewest = explain(triple), given = explain(triple, 2);

  EXPECT_EQ(fewest.ranks, 4);
  EXPECT_EQ(
      fewest.ranks_text,
      "4 ranks, the fewest that close train_batch_size 48 = micro 4 x accumulation 3 x ranks 4");
  EXPECT_TRUE(fewest.trains());
  EXPECT_EQ(given.ranks_text, "2 ranks, as -n says");
  EXPECT_THAT(key_of(given, "train_batch_size").refused,
              AllOf(HasSubstr("48 is not micro 4 x accumulation 3 x ranks 2 = 24"),
                    HasSubstr("instead: ")));
  EXPECT_FALSE(given.trains());
}

// The batch is refused, and its arithmetic closes all the same.
TEST(Explained, RanksOfARefusedBatchHaveTheirNumbers) {
  const Explanation e =
      explain(R"({"train_batch_size": 8, "elasticity": {"enabled": true, "min_gpus": 1}})");

  EXPECT_EQ(
      e.ranks_text,
      "1 rank, the fewest that close train_batch_size 8 = micro 8 x accumulation 1 x ranks 1");
  EXPECT_THAT(key_of(e, "train_batch_size").refused, HasSubstr("elasticity"));
  EXPECT_FALSE(e.trains());
}

TEST(Explained, AValueThatOnlyTheRunWillKnowStaysAuto) {
  const Explanation e = explain(R"({"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR",
      "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}})");

  const ExplainedKey& total = key_of(e, "scheduler.params.total_num_steps");
  EXPECT_EQ(total.text, "auto");
  EXPECT_EQ(total.value, json::Value::string("auto"));
  EXPECT_THAT(total.source, AllOf(HasSubstr("ds.json:2:"), HasSubstr("the steps of the run")));
  EXPECT_EQ(key_of(e, "scheduler.params.warmup_num_steps").text, "0");
}

TEST(Explained, KeysThatNobodyWritesAreNotExplained) {
  const Explanation e = explain(R"({"train_batch_size": 8})");

  for (const ExplainedKey& key : e.keys)
    EXPECT_NE(key.path, "run.derived");
}

TEST(Explained, FixesAreNotDescriptions) {
  const Explanation e = explain(R"({"train_batch_size": 8, "gradient_clipping": "one"})");

  EXPECT_EQ(key_of(e, "gradient_clipping").refused,
            "expected a number, found a string \"one\"; instead: write a number, such as 0");
}

TEST(Explained, UnresolvedAutoStaysAuto) {
  const Explanation e = explain(R"({"train_batch_size": "auto", "optimizer": {"type": "AdamW",
      "params": {"lr": "auto", "weight_decay": "auto"}}, "prescale_gradients": "auto", "zero_optimization": {"stage": 3,
      "reduce_bucket_size": "auto"}})");

  EXPECT_EQ(e.ranks_text, "1 rank: the batch size is not said");
  for (const char* path :
       {"train_batch_size", "optimizer.params.lr", "zero_optimization.reduce_bucket_size"}) {
    EXPECT_EQ(key_of(e, path).text, "auto") << path;
    EXPECT_THAT(key_of(e, path).source, HasSubstr("unresolved")) << path;
  }
  EXPECT_EQ(key_of(e, "optimizer.params.weight_decay").text, "0.0");
  EXPECT_THAT(key_of(e, "optimizer.params.weight_decay").source,
              AllOf(HasSubstr("ds.json:2:"), HasSubstr("auto: Hugging Face's default")));
  EXPECT_THAT(e.needed,
              ElementsAre(HasSubstr("data.train"),
                          HasSubstr("train_batch_size: is \"auto\""),
                          HasSubstr("optimizer.params.lr: is \"auto\"")));
  ASSERT_THAT(e.accepted, SizeIs(1));
  EXPECT_EQ(e.accepted[0].path, "prescale_gradients");
  EXPECT_EQ(e.accepted[0].text, "auto");
  EXPECT_THAT(e.notes, Not(Contains(HasSubstr("weight_decay"))));
  EXPECT_TRUE(e.trains());
}

TEST(Explained, SizesAreResolvedOnceThereIsAModel) {
  const Explanation e = explain(R"({"model": {"preset": "nano"}, "train_batch_size": 4,
      "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}})");

  EXPECT_EQ(key_of(e, "zero_optimization.reduce_bucket_size").text, "16384");
  EXPECT_THAT(key_of(e, "zero_optimization.reduce_bucket_size").source,
              HasSubstr("auto: hidden_size squared, which is 128"));
  EXPECT_EQ(key_of(e, "model.num_layers").source, "derived: preset nano");
  EXPECT_EQ(key_of(e, "model.preset").text, "nano");
}

TEST(Explained, KeysThatTrainWouldRefuseSayWhy) {
  const Explanation e = explain(R"({"train_batch_size": 4, "steps_per_print": 0,
      "curriculum_learning": {"enabled": true}, "zero_optimization": {"stage": 7}})");

  EXPECT_THAT(key_of(e, "steps_per_print").refused, HasSubstr("at least 1"));
  EXPECT_EQ(key_of(e, "steps_per_print").text, "0");
  EXPECT_THAT(key_of(e, "zero_optimization.stage").refused, HasSubstr("at most 3"));
  ASSERT_THAT(e.refused, SizeIs(1));
  EXPECT_EQ(e.refused[0].path, "curriculum_learning.enabled");
  EXPECT_EQ(e.refused[0].text, "true");
  EXPECT_THAT(e.refused[0].refused, AllOf(HasSubstr("not built yet"), HasSubstr("instead: ")));
  EXPECT_FALSE(e.trains());
}

TEST(Explained, KeysWithoutAMeaningAreListedWithTheReason) {
  const Explanation e = explain(
      R"({"train_batch_size": 4, "zero_optimization": {"stage": 2, "overlap_comm": true}})");

  ASSERT_THAT(e.accepted, SizeIs(1));
  EXPECT_EQ(e.accepted[0].path, "zero_optimization.overlap_comm");
  EXPECT_THAT(e.accepted[0].source,
              AllOf(HasSubstr("ds.json:1:"), HasSubstr("prefetched one block ahead")));
  EXPECT_THAT(e.notes, Not(Contains(HasSubstr("overlap_comm"))));
  EXPECT_TRUE(e.trains());
}

TEST(Explained, BlocksThatAreSwitchedOffAreNamed) {
  const Explanation e = explain(R"({"train_batch_size": 4, "compression_training": {},
      "curriculum_learning": {"enabled": false}, "fp16": {"enabled": false}})");

  ASSERT_THAT(e.accepted, SizeIs(2));
  EXPECT_EQ(e.accepted[0].path, "compression_training");
  EXPECT_EQ(e.accepted[1].path, "curriculum_learning");
  EXPECT_THAT(e.accepted[1].source, HasSubstr("switched off"));
  EXPECT_TRUE(e.trains());
}

TEST(Explained, AValueThatIsNotBuiltIsRefusedOnce) {
  const Explanation e = explain(R"({"train_batch_size": 4, "sequence_parallel_size": 2})");

  ASSERT_THAT(e.refused, SizeIs(1));
  EXPECT_THAT(e.refused[0].refused, HasSubstr("not built yet"));
}

TEST(Explained, UnknownKeysAreKeptApart) {
  const Explanation e = explain(R"({"train_batch_size": 4, "my_tools_key": 1})");

  EXPECT_THAT(e.unknown,
              ElementsAre(AllOf(HasSubstr("ds.json:1:"), HasSubstr("my_tools_key: unknown key"))));
  EXPECT_FALSE(e.trains());
}

TEST(Explained, TextHasALineForEachKey) {
  const Explanation e = explain(R"({"train_batch_size": 4, "steps_per_print": 0})");

  const std::string text = as_text(e);

  for (const ExplainedKey& key : e.keys)
    EXPECT_THAT(text, HasSubstr("  " + key.path + " "));
  EXPECT_THAT(text, HasSubstr("refused: expected at least 1 steps"));
  EXPECT_THAT(text, HasSubstr("train needs these values\n  "));
}

TEST(Explained, TextBeginsWithRefusalsAndWhatTheFileSets) {
  const std::string text = as_text(explain(R"({"train_batch_size": 4, "steps_per_print": 0,
      "optimizer": {"params": {"lr": 3e-5}}, "curriculum_learning": {"enabled": true}})"));
  const auto at = [&](const std::string& part) {
    const std::size_t found = text.find(part);
    EXPECT_NE(found, std::string::npos) << part << " in " << text;
    return found;
  };

  const std::size_t refused = at("train would refuse\n"), set = at("\nset\n"),
                    others = at("\nnot set\n");
  EXPECT_LT(refused, set);
  EXPECT_LT(set, others);
  for (const char* key : {"  steps_per_print ", "  curriculum_learning.enabled "})
    EXPECT_THAT(at(key), AllOf(Gt(refused), Lt(set))) << key;
  for (const char* key : {"  train_batch_size ", "  optimizer.params.lr "})
    EXPECT_THAT(at(key), AllOf(Gt(set), Lt(others))) << key;
  EXPECT_GT(at("  trainer.seed "), others);
}

TEST(Explained, JsonHasTheSame) {
  const json::Value out = as_json(explain(R"({"train_batch_size": "auto", "dump_state": true})"));

  EXPECT_EQ(out.find("ranks")->as_integer(), 1);
  EXPECT_TRUE(out.find("trains")->as_bool());
  EXPECT_EQ(out.find("accepted")->items().at(0).find("key")->as_string(), "dump_state");
  const auto& keys = out.find("keys")->items();
  const auto batch = std::find_if(keys.begin(), keys.end(), [](const json::Value& key) {
    return key.find("key")->as_string() == "train_batch_size";
  });
  ASSERT_NE(batch, keys.end());
  EXPECT_EQ(batch->find("value")->as_string(), "auto");
}

}  // namespace
}  // namespace tessera::report

// SPDX-License-Identifier: Apache-2.0
// Every key that is given has an effect, or its lack is noted or refused.
#include "tessera/planner/idle_keys.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/config/document.h"
#include "tessera/config/overrides.h"
#include "tessera/planner/draft.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json::Value base() {
  return json::parse(R"({"model": {"preset": "nano"}, "train_batch_size": 4,
                         "data": {"train": "a.txt", "sequence_length": 64}})",
                     "c.json");
}

std::vector<std::string> idle_notes(const std::string& members) {
  json::Value source = base();
  const json::Value more = json::parse("{" + members + "}", "c.json");
  for (const auto& [key, value] : more.members())
    source[key] = value;
  const Draft draft = make_draft(source, 1, "c.json");
  EXPECT_TRUE(draft.problems.empty())
      << members << ": " << (draft.problems.empty() ? "" : draft.problems.list().front().what);
  std::vector<std::string> out;
  for (const std::string& note : draft.notes) {
    if (note.find(" has no effect") != std::string::npos) out.push_back(note);
  }
  return out;
}

TEST(IdleKeys, OfALayoutWithoutASizeAreNoted) {
  EXPECT_THAT(idle_notes(R"("parallel": {"tensor": {"mode": "2d"}})"),
              ElementsAre("parallel.tensor.mode has no effect: parallel.tensor.size is 1"));
  EXPECT_THAT(idle_notes(R"("parallel": {"pipeline": {"schedule": "gpipe"}})"),
              ElementsAre("parallel.pipeline.schedule has no effect: parallel.pipeline.size is 1"));
  EXPECT_THAT(idle_notes(R"("parallel": {"context": {"mode": "ulysses"}})"),
              ElementsAre("parallel.context.mode has no effect: parallel.context.size is 1"));
}

TEST(IdleKeys, OfASectionThatIsSwitchedOffByNameAreNot) {
  EXPECT_THAT(idle_notes(R"("fp16": {"enabled": false, "loss_scale_window": 500})"), IsEmpty());
  EXPECT_THAT(idle_notes(R"("fp16": {"loss_scale_window": 500})"),
              ElementsAre("fp16.loss_scale_window has no effect: fp16.enabled is false"));
  EXPECT_THAT(idle_notes(R"("fp16": {"loss_scale_window": 1000})"), IsEmpty()) << "the default";
  EXPECT_THAT(idle_notes(R"("wandb": {"project": "x"})"),
              ElementsAre("wandb.project has no effect: wandb.enabled is false"));
}

TEST(IdleKeys, ActWhereTheirSwitchIsOn) {
  EXPECT_THAT(idle_notes(R"("fp16": {"enabled": true, "loss_scale_window": 500})"), IsEmpty());
  EXPECT_THAT(idle_notes(R"("torch_autocast": {"enabled": true, "dtype": "float16"},
                            "fp16": {"loss_scale_window": 500})"),
              IsEmpty());
  EXPECT_THAT(idle_notes(R"("activation_checkpointing": {"enabled": true, "every_n": 2})"),
              IsEmpty());
  EXPECT_THAT(idle_notes(R"("eval": {"every": 5, "batches": 3, "micro_batch": 2, "prompt": "a",
                                     "max_new_tokens": 3, "top_k": 2, "temperature": 0.5},
                            "data": {"train": "a.txt", "sequence_length": 64,
                                     "validation_fraction": 0.1})"),
              IsEmpty());
  EXPECT_THAT(idle_notes(R"("gradient_clipping": 1, "trainer": {"clip_after_warmup": true})"),
              IsEmpty());
}

TEST(IdleKeys, OfAResolvedConfigurationAreNot) {
  const Plan plan = make_plan(base(), 1, "c.json");
  EXPECT_THAT(make_plan(plan.resolved(), 1, "config.json").notes(), IsEmpty());
}

TEST(IdleKeys, OfTransfersActWhereAModelBesideAPolicyRestsOnADisk) {
  const auto notes = [](const char* device) {
    return idle_notes(
        std::string(R"("aio": {"block_size": 65536}, "task": {"type": "rl", "params": {
        "samples": 2, "kl": {"coefficient": 0.1}, "rewards": [{"type": "length"}],
        "models": {"reference": {"offload": {"device": ")") +
        device + R"(", "nvme_path": "/tmp"}}}}})");
  };
  EXPECT_THAT(notes("nvme"), IsEmpty());
}

// A run starts again from its config.json, in which sections without an effect are not written.
TEST(IdleKeys, OfStatesOnTheHostStayInTheResolvedConfigurationOfADevice) {
  const auto resolved = [](const char* device) {
    json::Value source = base();
    source["run"] = json::parse(std::string(R"({"device": ")") + device + R"("})", "c.json");
    source["zero_optimization"] =
        json::parse(R"({"stage": 1, "offload_optimizer": {"device": "cpu"}})", "c.json");
    return make_plan(source, 1, "c.json").resolved();
  };
  const auto kept = [](const json::Value& config) {
    return config.find("zero_optimization")->find("offload_optimizer") != nullptr;
  };
  EXPECT_TRUE(kept(resolved("cuda")));
  EXPECT_FALSE(kept(resolved("cpu")));
}

/// Keys that act on their own: none of them needs another one. A new key either belongs here, or
/// the planner notes or refuses it where it has no effect.
const std::set<std::string>& acting_alone() {
  static const std::set<std::string> keys = {
      "train_batch_size",
      "train_micro_batch_size_per_gpu",
      "gradient_accumulation_steps",
      "gradient_clipping",
      "gradient_clip_value",
      "rampup_batch_size",
      "gradient_reduction",
      "communication_data_type",
      "sparse_gradients",
      "tiling",
      "steps_per_print",
      "wall_clock_breakdown",
      "memory_breakdown",
      "task.type",
      "task.params",
      "adapter.type",
      "adapter.from",
      "distill.teacher",
      "qat.weights",
      "tokenizer.type",
      "data.train",
      "data.sources",
      "data.validation",
      "data.test",
      "data.validation_fraction",
      "data.sequence_length",
      "data.stride",
      "data.text_field",
      "data.pack",
      "data.separate_documents",
      "data.shuffle",
      "data.drop_last",
      "data.invalid_utf8",
      "data.streaming",
      "optimizer.type",
      "optimizer.params",
      "optimizer.groups",
      "optimizer.trained",
      "optimizer.decay_all",
      "optimizer.layer_decay",
      "optimizer.gradual_unfreezing.every",
      "optimizer.weight_decay_schedule.style",
      "scheduler.type",
      "scheduler.params",
      "scheduler.on_resume",
      "data_types.grad_accum_dtype",
      "zero_optimization.stage",
      "zero_optimization.reduce_bucket_size",
      "trainer.max_steps",
      "trainer.epochs",
      "trainer.seed",
      "trainer.on_nonfinite",
      "trainer.ema.decay",
      "checkpoint.every",
      "checkpoint.every_minutes",
      "checkpoint.keep",
      "checkpoint.final",
      "checkpoint.save_on_signal",
      "checkpoint.async",
      "checkpoint.load_universal",
      "checkpoint.use_node_local_storage",
      "run.dir",
      "run.threads_per_rank",
      "run.hosts",
      "run.transport",  // `tessera train` tells where there is one host
      "run.restarts",
      "run.min_hosts",
      "run.derived",
      "profile.steps",
      "activation_checkpointing.enabled",
      "activation_checkpointing.granularity",
      "eval.every",
  };
  return keys;
}

/// A value other than the default that the key accepts by itself.
json::Value value_for(const config::KeyDoc& key) {
  static const std::map<std::string, std::string> special = {
      {"adapter.targets", R"(["c_attn"])"},
      {"adapter.rank_pattern", R"({"c_attn": 2})"},
      {"adapter.alpha_pattern", R"({"c_attn": 2})"},
      {"adapter.exclude", R"(["c_attn"])"},
      {"adapter.layers", "0"},
      {"adapter.quantize_base", R"("nf4")"},
      {"distill.layers", "[0]"},
      {"tokenizer.vocab", R"("vocab.json")"},
      {"tokenizer.merges", R"("merges.txt")"},
      {"data.map", R"({"text": "body"})"},
      {"data.mix_until", R"("first")"},
      {"data.format", R"("chat")"},
      {"data.on_bad_record", R"("skip")"},
      {"eval.best", R"("loss")"},
      {"eval.test_every", "5"},
      {"eval.top_k", "7"},
      {"elasticity.micro_batch_sizes", "[1, 2]"},
      {"prometheus.address", R"("127.0.0.1:1234")"},
      {"comms_logger.prof_ops", R"(["all_reduce"])"},
      {"elasticity.version", "0.1"},
      {"parallel.pipeline.partition", R"("uniform")"},
      {"parallel.pipeline.chunks", "2"},
      {"amp.loss_scale", "128"},
      {"checkpoint.peer_copies", "1"},
      {"zero_optimization.zeropp_loco_param.err_beta", "0.5"},
  };
  if (const auto at = special.find(key.path); at != special.end())
    return json::parse(at->second, key.path);
  const bool on = key.initial == "true";
  if (key.type == "true or false") return json::Value::boolean(!on);
  const std::vector<std::string> choices = text::split(key.range, ',');
  if (key.type == "string" && !key.range.empty()) {
    for (const std::string& choice : choices) {
      const std::string name(text::trim(choice));
      if (key.initial.find(name) == std::string::npos) return json::Value::string(name);
    }
  }
  if (key.type == "string" || key.type == "string or list of strings")
    return json::Value::string("x");
  if (key.type == "number" || key.type == "integer" || key.type.starts_with("integer or")) {
    for (const double candidate : {3.0, 0.5, 0.9})
      if (key.type == "number" || candidate == 3.0) return json::parse(text::number(candidate), "");
  }
  return {};
}

/// True if the draft notes the key, or refuses it or the section that it needs.
bool is_told(const Draft& draft, const std::string& path) {
  const std::string section = path.substr(0, path.rfind('.'));
  return std::ranges::any_of(
             draft.notes,
             [&](const std::string& note) { return note.find(path) != std::string::npos; }) ||
         std::ranges::any_of(draft.problems.list(), [&](const config::Problems::Problem& problem) {
           return problem.path == path || problem.path == section ||
                  problem.path.starts_with(section + ".");
         });
}

TEST(IdleKeys, EveryKeyActsOrItsLackOfAnEffectIsReported) {
  std::set<std::string> seen;
  for (const config::KeyDoc& key : config::document(TrainConfig())) {
    if (key.type.empty() || key.path.starts_with("model.")) continue;
    seen.insert(key.path);
    // The switch of a section is "enabled" or "size".
    const std::string name = key.path.substr(key.path.rfind('.') + 1);
    if (acting_alone().contains(key.path) || name == "enabled" || name == "size") continue;
    const json::Value value = value_for(key);
    ASSERT_FALSE(value.is_null()) << key.path << ": give value_for() a value";
    json::Value source = base();
    config::set_key(source, key.path, value, "c.json");

    const Draft draft = make_draft(source, 1, "c.json");

    EXPECT_TRUE(is_told(draft, key.path))
        << key.path << " = " << value.dump() << " has no effect, and nothing says so";
  }
  for (const std::string& path : acting_alone())
    EXPECT_TRUE(seen.contains(path)) << path << " does not exist";
}

}  // namespace
}  // namespace tessera::planner

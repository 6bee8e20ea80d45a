// SPDX-License-Identifier: Apache-2.0
// A resolved configuration, config.json of a run, resolves to itself and to the same plan.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/source_dir.h"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/cli/flags_alone.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// Everything in a plan that decides what its ranks do, and that is not in plan.resolved() alone.
std::string decisions_of(const planner::Plan& plan) {
  std::string out =
      fmt::format("batch {} = {} x {} x {}, {} tokens, stage {} over {}, {} threads\n",
                  plan.recipe().global_batch,
                  plan.layout().micro_batch,
                  plan.layout().accumulation,
                  plan.layout().data_ranks,
                  plan.data().sequence_length,
                  plan.layout().zero_stage,
                  plan.layout().shard_ranks,
                  plan.layout().threads);
  const parallel::WeightOptions weights = plan.layout().weight_options(plan.model().rules);
  out += fmt::format("weights {} {} {} {} {} {} {}\n",
                     static_cast<int>(weights.residency),
                     static_cast<int>(weights.working),
                     weights.persistence_threshold,
                     weights.persistent,
                     static_cast<int>(weights.trained_gather),
                     static_cast<int>(weights.frozen_gather),
                     weights.tables_apart);
  out += fmt::format("gather {} {} {}\n",
                     plan.layout().gather.prefetch.value_or(-1),
                     plan.layout().gather.max_live,
                     plan.layout().gather.max_reuse_distance);
  const parallel::ReductionOptions reduction = plan.layout().reduction_options();
  out += fmt::format("reduction {} {} {} {} {} {} {}\n",
                     reduction.stage,
                     reduction.bucket,
                     static_cast<int>(reduction.mode),
                     static_cast<int>(reduction.accumulate),
                     static_cast<int>(reduction.comm_dtype),
                     reduction.sparse_rows,
                     reduction.max_micros);
  out += fmt::format("kept {} {}, scale {} {}, recompute {} {}\n",
                     static_cast<int>(plan.layout().kept.masters),
                     static_cast<int>(plan.layout().kept.states),
                     plan.recipe().scaling_stage,
                     plan.recipe().scaling.enabled,
                     plan.layout().recompute.regions,
                     std::ranges::count(plan.layout().recompute.blocks, true));
  out += fmt::format("stages {} x {} {}\n",
                     plan.layout().stages.stages,
                     plan.layout().stages.chunks,
                     fmt::join(plan.layout().stages.bounds, ","));
  out += plan.model().resolved.description.dump() +
         fmt::format(" {}", plan.model().resolved.num_parameters);
  return out;
}

/// Makes the plan again from its config.json. Returns false if the configuration makes none.
bool resolves_to_itself(const json::Value& source, int ranks, const std::string& what) {
  std::optional<planner::Plan> first;
  try {
    first = planner::make_plan(source, ranks, "my.json");
  } catch (const Error&) {
    return false;  // it names files that are not there, or another number of ranks
  }
  const json::Value written = json::parse(first->resolved().dump(2), "runs/my/config.json");
  const planner::Plan again = planner::make_plan(written, ranks, "runs/my/config.json");
  EXPECT_EQ(again.resolved().dump(2), first->resolved().dump(2)) << what;
  EXPECT_EQ(decisions_of(again), decisions_of(*first)) << what;
  return true;
}

/// Gives the configuration a small model if it begins with one of a folder.
json::Value with_a_model(json::Value source) {
  const json::Value* const model = source.find("model");
  if (model != nullptr && model->is_object() && model->find("from") == nullptr) return source;
  source["model"] = json::parse(R"({"family": "llama", "num_layers": 2, "hidden_size": 32,
                                    "num_heads": 4, "max_positions": 256})",
                                "model");
  return source;
}

std::vector<fs::path> files_below(const char* folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::recursive_directory_iterator(tessera::test::source_dir() / folder)) {
    if (entry.path().extension() == ".json") out.push_back(entry.path());
  }
  std::ranges::sort(out);
  return out;
}

TEST(Resolved, ConfigurationsOfTheRepositoryResolveToThemselves) {
  std::set<std::string> planned;
  for (const char* folder : {"share", "examples", "tests"}) {
    for (const fs::path& file : files_below(folder)) {
      json::Value source;
      try {
        source = json::parse(files::read(file), file.string());
      } catch (const Error&) {
        continue;  // made to be refused
      }
      if (!source.is_object() || source.find("data") == nullptr) continue;
      for (const int ranks : {1, 2}) {
        if (resolves_to_itself(with_a_model(source), ranks, file.string()))
          planned.insert(file.filename().string());
      }
    }
  }
  // The examples that need no other file than their data.
  for (const char* file : {"quickstart.json", "tiny.json", "sft.json", "dpo.json", "lora.json"})
    EXPECT_TRUE(planned.contains(file)) << file;
}

TEST(Resolved, ConfigurationsOfInitResolveToThemselves) {
  for (const char* preset : {"nano", "mini", "llama-nano"}) {
    const json::Value source =
        json::parse(configuration_for(preset, "my.txt"), "tessera init " + std::string(preset));
    EXPECT_TRUE(resolves_to_itself(source, 1, preset)) << preset;
    EXPECT_TRUE(resolves_to_itself(source, 2, preset)) << preset;
  }
}

/// One member or several that decide something, each together with all others that do not have the
/// same first key.
const std::vector<std::string>& members() {
  static const std::vector<std::string> all = {
      R"("zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
          "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"})",
      R"("zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"})",
      R"("zero_optimization": {"stage": 3, "zero_quantized_weights": true,
          "zero_hpz_partition_size": "auto"})",
      R"("zero_optimization": true)",
      R"("optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": "auto", "eps": "auto",
          "weight_decay": "auto"}})",
      R"("optimizer": {"type": "MuAdamW", "params": {"lr": 1e-3}})",
      R"("optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3, "freeze_step": 3}})",
      R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto",
          "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}})",
      R"("scheduler": {"type": "linear"})",
      R"("gradient_clipping": "auto")",
      R"("fp16": {"enabled": true})",
      R"("fp16": {"enabled": "auto"})",
      R"("bf16": {"enabled": "auto"})",
      R"("fp16": {"mode": "AMP_TYPE.NAIVE"})",
      R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})",
      R"("amp": {"enabled": true, "opt_level": "O2"})",
      R"("torch_autocast": {"enabled": true})",
      R"("communication_data_type": "int8")",
      R"("sparse_gradients": true)",
      R"("gradient_reduction": "once")",
      R"("activation_checkpointing": {"granularity": "full", "every_n": 2})",
      R"("activation_checkpointing": {"granularity": "auto"})",
      R"("trainer": {"epochs": 2, "ema": {"decay": 0.99}})",
      R"("eval": {"every": 5, "best": "loss", "patience": 2, "prompt": "a"})",
      R"("adapter": {"type": "lora", "r": 4})",
      R"("tokenizer": {"type": "byte"})",
  };
  return all;
}

std::string first_key(const std::string& member) {
  return member.substr(0, member.find(':'));
}

TEST(Resolved, AnyTwoSettingsResolveToThemselves) {
  constexpr const char* kBegin =
      R"({"model": {"num_layers": 4, "hidden_size": 32, "num_heads": 4},
          "data": {"train": "a.txt", "sequence_length": 16, "validation_fraction": 0.1},
          "train_batch_size": 8, "run": {"threads_per_rank": 1})";
  int planned = 0;
  for (const std::string& one : members()) {
    for (const std::string& other : members()) {
      if (first_key(one) > first_key(other) ||
          (&one != &other && first_key(one) == first_key(other)))
        continue;
      const std::string both = &one == &other ? one : one + ", " + other;
      const json::Value source = json::parse(fmt::format("{}, {}}}", kBegin, both), both);
      for (const int ranks : {1, 2})
        planned += resolves_to_itself(source, ranks, fmt::format("{} on {}", both, ranks)) ? 1 : 0;
    }
  }
  // Some contradict each other; most do not.
  EXPECT_GT(planned, 300);
}

TEST(Resolved, LayoutsResolveToThemselves) {
  for (const char* layout : {R"("pipeline": 2)",
                             R"("pipeline": {"size": 2, "schedule": "interleaved"})",
                             R"("pipeline": {"size": 2, "partition": [0, 2, 6]})",
                             R"("tensor": 2, "sequence": true)",
                             R"("tensor": {"size": 4, "mode": "2d"})",
                             R"("context": 2)",
                             R"("context": {"size": 2, "mode": "ulysses"}, "tensor": 2)"}) {
    const json::Value source = json::parse(
        fmt::format(R"({{"model": {{"num_layers": 4, "hidden_size": 32, "num_heads": 4}},
                         "data": {{"train": "a.txt", "sequence_length": 16}},
                         "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
                         "zero_optimization": {{"stage": 1, "reduce_bucket_size": "auto"}},
                         "parallel": {{{}}}}})",
                    layout),
        layout);
    EXPECT_TRUE(resolves_to_itself(source, 4, layout)) << layout;
  }
}

}  // namespace
}  // namespace tessera::cli

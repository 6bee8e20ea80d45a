// SPDX-License-Identifier: Apache-2.0
// Contradictions in a DeepSpeed configuration, independent of how its keys are used here. Source:
// the checks of DeepSpeed 0.19, and Colossal-AI's for fp16.
#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/config/key_dialect.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/validate.h"
#include "tessera/tasks/rl/rl.h"
#include "tessera/tasks/task.h"

namespace tessera::planner {
namespace {

// A key that is absent, or whose type is reported elsewhere, violates no rule.
class Written {
 public:
  Written(const json::Value& source, config::Problems& problems)
      : source_(source), problems_(problems) {}

  [[nodiscard]] const json::Value* find(std::string_view path) const {
    const json::Value* at = &source_;
    for (const std::string& step : text::split(path, '.')) {
      at = at->is_object() ? at->find(step) : nullptr;
      if (at == nullptr) return nullptr;
    }
    return at;
  }
  [[nodiscard]] bool on(std::string_view path) const {
    const json::Value* value = find(path);
    return value != nullptr && value->is_bool() && value->as_bool();
  }
  [[nodiscard]] double number(std::string_view path, double absent) const {
    const json::Value* value = find(path);
    return value != nullptr && value->is_number() ? value->as_double() : absent;
  }
  [[nodiscard]] std::string word(std::string_view path) const {
    const json::Value* value = find(path);
    return value != nullptr && value->is_string() ? value->as_string() : "";
  }
  /// DeepSpeed's stage; its default without a block or without the key.
  [[nodiscard]] int stage() const { return static_cast<int>(number("zero_optimization.stage", 0)); }
  /// Number of stages from either key, if there is more than one.
  [[nodiscard]] int pipeline() const {
    const double plain = number("parallel.pipeline", 1);
    return static_cast<int>(
        std::max({plain, number("parallel.pipeline.size", 1), number("pipeline.stages", 1)}));
  }
  /// "fp16.enabled (c.json:3:14)".
  [[nodiscard]] std::string at(std::string_view path) const {
    const json::Value* value = find(path);
    const std::string place = value == nullptr ? "" : value->place.text();
    return place.empty() ? std::string(path) : fmt::format("{} ({})", path, place);
  }
  void refuse(std::string_view path, std::string what, std::string fix) {
    const json::Value* value = find(path);
    problems_.add(value == nullptr ? source_.place : value->place,
                  std::string(path),
                  std::move(what),
                  std::move(fix));
  }

 private:
  const json::Value& source_;
  config::Problems& problems_;
};

void check_types(Written& written) {
  if (written.on("fp16.enabled") && written.on("bf16.enabled")) {
    written.refuse(
        "bf16.enabled",
        fmt::format("{} is true as well: a run has one 16-bit type", written.at("fp16.enabled")),
        "set one of the two to false");
  }
  if (written.on("amp.enabled")) {
    for (const char* other : {"fp16.enabled", "bf16.enabled"}) {
      if (!written.on(other)) continue;
      written.refuse(
          "amp.enabled",
          fmt::format("{} is true as well: a run has one 16-bit type", written.at(other)),
          "set amp.enabled to false");
    }
    if (written.stage() > 0) {
      written.refuse(
          "amp.enabled",
          fmt::format("does not go with ZeRO: zero_optimization.stage is {}", written.stage()),
          "set amp.enabled to false and bf16.enabled to true");
    }
  }
  for (const char* other : {"fp16.enabled", "bf16.enabled", "amp.enabled"}) {
    if (!written.on("torch_autocast.enabled") || !written.on(other)) continue;
    written.refuse("torch_autocast.enabled",
                   fmt::format("{} is true as well: a run has one 16-bit type", written.at(other)),
                   "set torch_autocast.enabled to false");
  }
  const char* const states = "bf16.bf16_optimizer_states";
  const char* const masters = "bf16.bf16_master_weights_and_grads";
  if (written.on(states) && !written.on(masters)) {
    written.refuse(states, fmt::format("needs {} true", masters), "set it to false");
  }
}

// Colossal-AI's pipelines support only NAIVE.
void check_mode(Written& written) {
  static const std::vector<std::string> kKnown = {
      "AMP_TYPE.NAIVE", "AMP_TYPE.TORCH", "AMP_TYPE.APEX"};
  const char* const path = "fp16.mode";
  const json::Value* value = written.find(path);
  if (value == nullptr || !value->is_string()) return;
  const std::string type = config::amp_type(value->as_string());
  const bool known = std::any_of(
      kKnown.begin(), kKnown.end(), [&](const auto& one) { return config::amp_type(one) == type; });
  if (!known) {
    written.refuse(path,
                   fmt::format("unknown value {}", value->dump()),
                   text::suggestion(value->as_string(), kKnown));
  } else if (type != "naive" && written.on("fp16.enabled") && written.pipeline() > 1) {
    written.refuse(
        path,
        fmt::format(
            "{} does not go with a pipeline of {} stages", value->dump(), written.pipeline()),
        "set it to \"AMP_TYPE.NAIVE\"");
  }
}

void check_clipping(Written& written) {
  const char* const path = "optimizer.params.max_grad_norm";
  const double norm = written.number(path, 0);
  if (norm <= 0) return;
  const double clipping = written.number("gradient_clipping", norm);
  std::string what = "clipping is not a parameter of the optimizer";
  if (clipping != norm) {
    what += fmt::format(", and gradient_clipping says {} where this says {}",
                        text::number(clipping),
                        text::number(norm));
  }
  written.refuse(
      path,
      what,
      fmt::format("remove it and set \"gradient_clipping\": {} at the top", text::number(norm)));
}

void check_offload(Written& written) {
  const int stage = written.stage();
  const auto device = [&](const char* block) {
    const std::string name = written.word(fmt::format("zero_optimization.{}.device", block));
    return name == "none" ? "" : name;
  };
  const std::string param = device("offload_param");
  const std::string optimizer = device("offload_optimizer");
  if (!optimizer.empty() && stage == 0) {
    written.refuse(
        "zero_optimization.offload_optimizer.device",
        fmt::format("\"{}\" needs a sharded optimizer: zero_optimization.stage is 0", optimizer),
        "set zero_optimization.stage to 1, 2 or 3, or device to \"none\"");
  }
  if (!param.empty() && stage != 3) {
    written.refuse(
        "zero_optimization.offload_param.device",
        fmt::format("\"{}\" needs sharded weights: zero_optimization.stage is {}", param, stage),
        "set zero_optimization.stage to 3, or device to \"none\"");
  }
  const char* const ratio = "zero_optimization.offload_optimizer.ratio";
  if (written.number(ratio, 1) < 1 && stage != 3) {
    written.refuse(ratio,
                   fmt::format("{} needs zero_optimization.stage 3, which is {}",
                               text::number(written.number(ratio, 1)),
                               stage),
                   "set zero_optimization.stage to 3, or remove ratio");
  }
}

void check_shards(Written& written) {
  const int stage = written.stage();
  const double mics = written.number("zero_optimization.mics_shard_size", -1);
  const double hpz = written.number("zero_optimization.zero_hpz_partition_size", 1);
  if (mics > 0 && hpz > 1) {
    written.refuse(
        "zero_optimization.mics_shard_size",
        fmt::format("{} and zero_hpz_partition_size {} are two ways to cut the same shards",
                    text::number(mics),
                    text::number(hpz)),
        "remove one of the two");
  }
  const auto needs_three = [&](const char* key, bool on) {
    const std::string path = json::join_path("zero_optimization", key);
    if (!on || stage == 3) return;
    written.refuse(path,
                   fmt::format("needs zero_optimization.stage 3, which is {}", stage),
                   "set zero_optimization.stage to 3, or remove the key");
  };
  needs_three("mics_shard_size", mics > 0);
  needs_three("zero_hpz_partition_size", hpz > 1);
  needs_three("zero_quantized_weights", written.on("zero_optimization.zero_quantized_weights"));
  needs_three("zero_quantized_nontrainable_weights",
              written.on("zero_optimization.zero_quantized_nontrainable_weights"));
  needs_three("zero_quantized_gradients", written.on("zero_optimization.zero_quantized_gradients"));
  if (stage == 3 && written.word("gradient_allreduce_op") == "sum") {
    written.refuse(
        "gradient_allreduce_op", "\"sum\" does not go with zero_optimization.stage 3", "remove it");
  }
}

void check_norm(Written& written) {
  const char* const path = "zero_optimization.compute_grad_norm";
  const json::Value* value = written.find(path);
  if (value == nullptr || !value->is_bool() || value->as_bool()) return;
  const int stage = written.stage();
  if (stage != 1 && stage != 2) {
    written.refuse(path,
                   fmt::format("false needs zero_optimization.stage 1 or 2, which is {}", stage),
                   "remove it, or set it to true");
  }
  const double clipping = written.number("gradient_clipping", 0);
  if (clipping > 0) {
    written.refuse(path,
                   fmt::format("false does not go with gradient_clipping, which is {}",
                               text::number(clipping)),
                   "remove it, or set it to true");
  }
}

void check_pipeline(Written& written) {
  const int stages = written.pipeline();
  if (stages <= 1) return;
  const char* const path =
      written.find("pipeline.stages") != nullptr ? "pipeline.stages" : "parallel.pipeline";
  if (written.on("elasticity.enabled")) {
    written.refuse(
        path,
        fmt::format("{} stages do not go with elasticity, which changes the ranks", stages),
        "set elasticity.enabled to false");
  }
}

void check_checkpoint(Written& written) {
  static const std::vector<std::string> kKnown = {"Ignore", "Warn", "Fail"};
  const char* const path = "checkpoint.tag_validation";
  const json::Value* value = written.find(path);
  if (value == nullptr || !value->is_string()) return;
  const std::string word = text::lower(value->as_string());
  const bool known = std::any_of(
      kKnown.begin(), kKnown.end(), [&](const auto& one) { return text::lower(one) == word; });
  if (!known) {
    written.refuse(path,
                   fmt::format("unknown value {}", value->dump()),
                   text::suggestion(value->as_string(), kKnown));
  }
}

void check_elasticity(Written& written) {
  if (!written.on("elasticity.enabled") || written.on("elasticity.ignore_non_elastic_batch_info"))
    return;
  for (const char* key :
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    const json::Value* value = written.find(key);
    if (value == nullptr) continue;
    written.refuse(key,
                   fmt::format("{} is given, and elasticity chooses it as well", value->dump()),
                   "set elasticity.enabled to false");
  }
}

}  // namespace

namespace {

/// A section that is named like a task has the parameters of that task, and no other.
void check_task_sections(const json::Value& source, Written& written) {
  const std::string given = written.word("task.type");
  const std::string type = given.empty() ? tasks::TaskOptions().type : given;
  for (const auto& [name, value] : source.members()) {
    if (!value.is_object() || !tasks::tasks().has(name)) continue;
    if (name == type) {
      written.refuse(name,
                     "has parameters of the task, and so has task.params",
                     "write all of them into one of the two");
    } else {
      written.refuse(name,
                     fmt::format("has parameters of the task {}, and the task is {}", name, type),
                     fmt::format("set \"task\": \"{}\", or remove \"{}\"", name, name));
    }
  }
}

}  // namespace

void check_written(const json::Value& source, config::Problems& problems) {
  if (!source.is_object()) return;
  Written written(source, problems);
  check_types(written);
  check_task_sections(source, written);
  check_mode(written);
  check_clipping(written);
  check_offload(written);
  check_shards(written);
  check_norm(written);
  check_pipeline(written);
  check_elasticity(written);
  check_checkpoint(written);
}

void drop_max_grad_norm(json::Value& source) {
  json::Value* const optimizer = source.is_object() ? source.find("optimizer") : nullptr;
  json::Value* const params =
      optimizer != nullptr && optimizer->is_object() ? optimizer->find("params") : nullptr;
  if (params == nullptr || !params->is_object()) return;
  std::erase_if(params->members(),
                [](const auto& member) { return member.first == "max_grad_norm"; });
}

void check_hybrid_engine(const json::Value& source,
                         const DataPlan& data,
                         config::Problems& problems) {
  if (!source.is_object()) return;
  Written written(source, problems);
  if (!written.on("hybrid_engine.enabled")) return;
  const tasks::Rl* const rl = tasks::as_rl(data.task.get());
  const char* const sharers_path = "hybrid_engine.inference_tp_size";
  // The task rl, which generates, takes it as rl.rollout_tensor unless that is given too.
  const double sharers =
      rl != nullptr ? static_cast<double>(rl->options().rollout_tensor.value_or(0)) : 0.0;
  if (const double asked = written.number(sharers_path, sharers); sharers > 0 && asked != sharers) {
    written.refuse(
        sharers_path,
        fmt::format("it is {}, and rl.rollout_tensor, which means the same, is {}", asked, sharers),
        "remove one of them");
  }
  const auto length = static_cast<double>(data.sequence_length);
  const char* const length_path = "hybrid_engine.max_out_tokens";
  if (const double most = written.number(length_path, length);
      data.task != nullptr && data.task->writes_answers() && most < length) {
    written.refuse(length_path,
                   fmt::format("the cache is to hold {} tokens, and a prompt with its completion "
                               "has up to data.sequence_length {}",
                               most,
                               length),
                   fmt::format("set data.sequence_length to {}", most));
  }
}

}  // namespace tessera::planner

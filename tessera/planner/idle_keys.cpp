// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/idle_keys.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/config/document.h"
#include "tessera/memory/device.h"
#include "tessera/parallel/offload_rules.h"
#include "tessera/planner/validate.h"

namespace tessera::planner {
namespace {

bool on_device(const TrainConfig& config) {
  return offload_choice(config).on_device();
}

/// True if a model beside the policy rests on a disk (rl.models), which `aio` describes too.
bool models_rest(const TrainConfig& config) {
  const auto member = [](const json::Value* value, const char* key) {
    return value != nullptr && value->is_object() ? value->find(key) : nullptr;
  };
  const json::Value* const models =
      config.task.type == "rl" ? member(&config.task.params, "models") : nullptr;
  if (models == nullptr || !models->is_object()) return false;
  return std::ranges::any_of(models->members(), [&](const auto& model) {
    const json::Value* const device = member(member(&model.second, "offload"), "device");
    return device != nullptr && device->is_string() && device->as_string() == "nvme";
  });
}

}  // namespace

void drop_unused_sections(const TrainConfig& config, json::Value& resolved) {
  const auto drop = [](json::Value& object, std::string_view key) {
    std::erase_if(object.members(), [&](const auto& member) { return member.first == key; });
  };
  if (!config.adapter.enabled()) drop(resolved, "adapter");
  if (!config.distill.teacher) drop(resolved, "distill");
  if (!config.qat.enabled()) drop(resolved, "qat");
  if (config.qat.enabled() && config.qat.weights != "int4") drop(resolved["qat"], "group_size");
  const parallel::ZeroOptions& zero = config.zero_optimization;
  json::Value& block = resolved["zero_optimization"];
  if (!zero.zeropp_loco_param.on()) drop(block, "zeropp_loco_param");
  const auto on_host = [&](const std::optional<parallel::OffloadDevice>& device) {
    return device == parallel::OffloadDevice::Cpu && on_device(config);
  };
  if (!zero.offload_optimizer.to_disk() && !on_host(zero.offload_optimizer.device))
    drop(block, "offload_optimizer");
  if (!zero.offload_param.to_disk() && !on_host(zero.offload_param.device))
    drop(block, "offload_param");
  const parallel::RecomputeOptions& recompute = config.activation_checkpointing;
  if (!recompute.offload.to_disk() && !(recompute.to_host() && on_device(config)))
    drop(resolved["activation_checkpointing"], "offload");
  const bool disk = zero.offload_optimizer.to_disk() || zero.offload_param.to_disk() ||
                    config.activation_checkpointing.offload.to_disk() || models_rest(config);
  if (!disk) drop(resolved, "aio");
}

namespace {

/// A key without an effect in some configurations, outside of a section with a switch.
struct Need {
  std::string_view key;
  bool (*is_idle)(const TrainConfig& config);
  std::string_view why;
};

bool evaluates(const TrainConfig& config) {
  return config.eval.when().any();
}
bool tests_or_evaluates(const TrainConfig& config) {
  return evaluates(config) || !config.data.test.empty();
}
bool samples_text(const TrainConfig& config) {
  return evaluates(config) && !config.eval.prompt.empty();
}

bool keeps_states_in_memory(const TrainConfig& config) {
  return !config.zero_optimization.offload_optimizer.to_disk();
}

bool keeps_weights_in_memory(const TrainConfig& config) {
  return !config.zero_optimization.offload_param.to_disk();
}
bool keeps_activations_in_memory(const TrainConfig& config) {
  return !config.activation_checkpointing.offload.to_disk();
}
bool moves_no_activations(const TrainConfig& config) {
  return keeps_activations_in_memory(config) &&
         !(config.activation_checkpointing.to_host() && on_device(config));
}
bool uses_no_disk(const TrainConfig& config) {
  return keeps_states_in_memory(config) && keeps_weights_in_memory(config) &&
         keeps_activations_in_memory(config) && !models_rest(config);
}

constexpr const char* kNeitherOnDisk =
    "no device of zero_optimization.offload_optimizer, zero_optimization.offload_param and "
    "activation_checkpointing.offload is nvme";
constexpr const char* kNoActivationsOnDisk = "activation_checkpointing.offload.device is not nvme";
constexpr const char* kNoWeightsOnDisk = "zero_optimization.offload_param.device is not nvme";
constexpr const char* kNoDisk = "zero_optimization.offload_optimizer.device is not nvme";
constexpr const char* kNoEvaluations = "eval.every is 0";
constexpr const char* kNoPrompt = "eval.prompt is not given, or eval.every is 0";

constexpr auto kNeeds = std::to_array<Need>({
    {"activation_checkpointing.every_n",
     [](const TrainConfig& c) {
       return c.activation_checkpointing.kind() != parallel::RecomputeKind::Full;
     },
     "activation_checkpointing.granularity is not full"},
    {"zero_optimization.sub_group_size", keeps_states_in_memory, kNoDisk},
    {"zero_optimization.offload_optimizer.nvme_path", keeps_states_in_memory, kNoDisk},
    {"zero_optimization.offload_optimizer.buffer_count", keeps_states_in_memory, kNoDisk},
    {"zero_optimization.offload_optimizer.pipeline_read", keeps_states_in_memory, kNoDisk},
    {"zero_optimization.offload_optimizer.pipeline_write", keeps_states_in_memory, kNoDisk},
    {"zero_optimization.offload_optimizer.ratio", keeps_states_in_memory, kNoDisk},
    {"zero_optimization.offload_optimizer.gradients", keeps_states_in_memory, kNoDisk},
    {"zero_optimization.offload_param.nvme_path", keeps_weights_in_memory, kNoWeightsOnDisk},
    {"zero_optimization.offload_param.buffer_count", keeps_weights_in_memory, kNoWeightsOnDisk},
    {"zero_optimization.offload_param.max_in_cpu", keeps_weights_in_memory, kNoWeightsOnDisk},
    {"activation_checkpointing.offload.nvme_path",
     keeps_activations_in_memory,
     kNoActivationsOnDisk},
    {"activation_checkpointing.offload.buffer_count",
     moves_no_activations,
     "activation_checkpointing.offload.device is not nvme, nor cpu on a GPU"},
    {"aio.block_size", uses_no_disk, kNeitherOnDisk},
    {"aio.queue_depth", uses_no_disk, kNeitherOnDisk},
    {"aio.intra_op_parallelism", uses_no_disk, kNeitherOnDisk},
    {"trainer.clip_after_warmup",
     [](const TrainConfig& c) { return c.gradient_clipping == 0 && c.gradient_clip_value == 0; },
     "gradient_clipping is 0"},
    {"optimizer.weight_decay_schedule.steps",
     [](const TrainConfig& c) {
       return c.optimizer.weight_decay_schedule.style == optim::DecayRampOptions::Style::Constant;
     },
     "optimizer.weight_decay_schedule.style is constant"},
    {"checkpoint.peer_every",
     [](const TrainConfig& c) { return c.checkpoint.peer_copies == 0; },
     "checkpoint.peer_copies is 0"},
    {"run.attention_kernel",
     [](const TrainConfig& c) { return memory::device_kind(c.run.device) == DeviceKind::Cpu; },
     "ranks compute on the CPU, which has one kernel of attention"},
    {"run.max_hosts",
     [](const TrainConfig& c) { return !c.run.min_hosts.has_value(); },
     "run.min_hosts is not given"},
    {"eval.batches", [](const TrainConfig& c) { return !evaluates(c); }, kNoEvaluations},
    {"eval.micro_batch",
     [](const TrainConfig& c) { return !tests_or_evaluates(c); },
     "eval.every is 0, and data.test is not given"},
    {"eval.weights",
     [](const TrainConfig& c) { return !tests_or_evaluates(c); },
     "eval.every is 0, and data.test is not given"},
    {"eval.prompt", [](const TrainConfig& c) { return !evaluates(c); }, kNoEvaluations},
    {"eval.max_new_tokens",
     [](const TrainConfig& c) { return !samples_text(c) && c.eval.generate == 0; },
     "neither eval.prompt nor eval.generate lets the model write"},
    {"eval.top_k", [](const TrainConfig& c) { return !samples_text(c); }, kNoPrompt},
    {"eval.temperature", [](const TrainConfig& c) { return !samples_text(c); }, kNoPrompt},
    {"tokenizer.vocab",
     [](const TrainConfig& c) { return text::lower(c.tokenizer.type) == "byte"; },
     "tokenizer.type is byte"},
    {"tokenizer.merges",
     [](const TrainConfig& c) { return text::lower(c.tokenizer.type) == "byte"; },
     "tokenizer.type is byte"},
});

/// True if another section asks for the type of fp16 or bf16, so that its keys apply.
bool is_asked_elsewhere(std::string_view section, const TrainConfig& config) {
  const bool half = config.torch_autocast.enabled && config.torch_autocast.dtype == DType::F16;
  if (section == "fp16") return config.amp.enabled || half;
  return section == "bf16" && config.torch_autocast.enabled && !half;
}

/// The names of the members that switch a section on.
std::string_view switch_of(std::string_view path, const json::Value& section) {
  if (path == "activation_checkpointing") return "";  // granularity is another switch
  const json::Value* const enabled = section.find("enabled");
  if (enabled != nullptr && enabled->is_bool()) return "enabled";
  return path.starts_with("parallel.") && section.find("size") != nullptr ? "size" : "";
}

bool is_off(const json::Value& value) {
  return value.is_bool() ? !value.as_bool() : value.as_integer().value_or(0) <= 1;
}

class IdleKeys {
 public:
  IdleKeys(const TrainConfig& config, const config::Origins& origins)
      : config_(config), origins_(origins), standard_(written(TrainConfig())) {}

  std::vector<std::string> run() {
    const json::Value all = written(config_);
    look("", all, standard_);
    for (const Need& need : kNeeds) {
      if (differs(need.key, at(all, need.key), at(standard_, need.key)) && need.is_idle(config_))
        note(std::string(need.key), need.why);
    }
    return std::move(notes_);
  }

 private:
  static json::Value written(TrainConfig config) { return config::write(config); }

  static const json::Value* at(const json::Value& source, std::string_view path) {
    const json::Value* out = &source;
    for (const std::string& step : text::split(path, '.')) {
      out = out->is_object() ? out->find(step) : nullptr;
      if (out == nullptr) return nullptr;
    }
    return out;
  }

  /// True if the user gave the key another value than its default, which may be one that is
  /// documented and filled in later.
  [[nodiscard]] bool differs(std::string_view path,
                             const json::Value* value,
                             const json::Value* standard) const {
    if (!origins_.given(path) || value == nullptr) return false;
    if (standard != nullptr) return !(*value == *standard);
    const auto documented = std::ranges::find(documents_, path, &config::KeyDoc::path);
    const std::string text = value->is_string() ? value->as_string() : value->dump();
    return documented == documents_.end() || documented->initial != text;
  }

  void note(const std::string& key, std::string_view why) {
    notes_.push_back(fmt::format("{} has no effect: {}", key, why));
  }

  /// Notes the keys of sections that are switched off, in `section` and below.
  void look(const std::string& path, const json::Value& section, const json::Value& standard) {
    const std::string_view key = switch_of(path, section);
    const std::string switch_path = json::join_path(path, key);
    const bool off = !key.empty() && is_off(*section.find(key)) &&
                     !(key == "enabled" && origins_.given(switch_path)) &&
                     !is_asked_elsewhere(path, config_);
    for (const auto& [name, value] : section.members()) {
      const std::string member = json::join_path(path, name);
      const json::Value* const usual = standard.find(name);
      const bool is_section = value.is_object() && usual != nullptr && usual->is_object();
      if (is_section) {
        look(member, value, *usual);
      } else if (off && name != key && differs(member, &value, usual)) {
        note(member, fmt::format("{} is {}", switch_path, section.find(key)->dump()));
      }
    }
  }

  const TrainConfig& config_;
  const config::Origins& origins_;
  json::Value standard_;
  const std::vector<config::KeyDoc> documents_ = config::document(TrainConfig());
  std::vector<std::string> notes_;
};

}  // namespace

std::vector<std::string> idle_key_notes(const TrainConfig& config, const config::Origins& origins) {
  // A resolved configuration has every key.
  if (origins.given("run.derived")) return {};
  return IdleKeys(config, origins).run();
}

}  // namespace tessera::planner

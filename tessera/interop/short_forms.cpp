// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/short_forms.h"

#include <string_view>
#include <utility>

#include "tessera/config/key_dialect.h"
#include "tessera/interop/deepspeed/keys.h"

namespace tessera::interop {
namespace {

void erase(json::Value& object, std::string_view key) {
  std::erase_if(object.members(), [&](const auto& member) { return member.first == key; });
}

bool is_word(const json::Value* value, std::string_view word) {
  return value != nullptr && value->is_string() && value->as_string() == word;
}

json::Value* block_of(json::Value& source, std::string_view key) {
  json::Value* const block = source.find(key);
  return block != nullptr && block->is_object() ? block : nullptr;
}

// Removes DeepSpeed's values that mean "absent", and renames one that has another name here.
void spell_out_deepspeed(json::Value& source) {
  if (json::Value* const pipeline = block_of(source, "pipeline")) {
    if (is_word(pipeline->find("stages"), "auto")) erase(*pipeline, "stages");
    json::Value* const partition = pipeline->find("partition");
    if (is_word(partition, "best")) {
      json::Value same = json::Value::string("parameters");
      same.place = partition->place;
      same.key_place = partition->key_place;
      *partition = std::move(same);
    }
  }
  if (json::Value* const tensor = block_of(source, "tensor_parallel")) {
    const json::Value* const size = tensor->find("autotp_size");
    const bool off = size != nullptr && size->is_number() && size->as_integer() == 0;
    if (off || is_word(size, "auto")) erase(*tensor, "autotp_size");
  }
  if (json::Value* const experts = block_of(source, "expert_parallel")) {
    const json::Value* const enabled = experts->find("enabled");
    const bool on = enabled != nullptr && enabled->is_bool() && enabled->as_bool();
    // Without the switch, the values of its block mean nothing.
    for (const char* const key : {"autoep_size",
                                  "expert_tensor_parallel_size",
                                  "score_func",
                                  "score_apply",
                                  "route_norm",
                                  "route_scale",
                                  "top_k",
                                  "routed_scaling_factor",
                                  "num_expert_groups",
                                  "num_limited_groups",
                                  "expert_activation",
                                  "load_balance_coeff"}) {
      if (!on) erase(*experts, key);
    }
  }
}

bool is_given(const json::Value& object, std::string_view key) {
  const json::Value* const value = object.find(key);
  return value != nullptr && !value->is_null();
}

// Sets `value` with the place of the value from which it was made.
void put(json::Value& object, std::string_view key, json::Value value, const json::Value& origin) {
  value.place = origin.place;
  value.key_place = origin.key_place;
  object[key] = std::move(value);
}

// DeepSpeed recomputes segments of several pipeline layers, tessera one block after the other.
void move_interval(json::Value& source) {
  constexpr std::string_view kKey = "activation_checkpoint_interval";
  constexpr std::string_view kSection = "activation_checkpointing";
  json::Value* const pipeline = block_of(source, "pipeline");
  if (pipeline == nullptr || !is_given(*pipeline, kKey)) return;
  const json::Value interval = *pipeline->find(kKey);
  const auto layers = interval.is_number() ? interval.as_integer() : std::nullopt;
  if (!layers || *layers < 0) return;
  if (*layers == 0) return erase(*pipeline, kKey);
  if (is_given(source, kSection)) {
    const json::Value* const section = block_of(source, kSection);
    // A section that sets it explicitly takes precedence, and the key is reported as having no
    // effect.
    if (section == nullptr || is_given(*section, "enabled") || is_given(*section, "granularity"))
      return;
  }
  erase(*pipeline, kKey);
  json::Value& section = source[kSection];
  if (section.is_null()) section.place = section.key_place = interval.key_place;
  put(section, "enabled", json::Value::boolean(true), interval);
}

// Colossal-AI's fp16 has a mode instead of a switch, and Megatron-LM's scaler.
void spell_out_mode(json::Value& source) {
  json::Value* const fp16 = block_of(source, "fp16");
  if (fp16 == nullptr || !is_given(*fp16, "mode") || is_given(*fp16, "enabled")) return;
  const json::Value mode = *fp16->find("mode");
  if (!mode.is_string()) return;
  put(*fp16, "enabled", json::Value::boolean(true), mode);
  if (!is_given(*fp16, "scaler")) put(*fp16, "scaler", json::Value::string("megatron"), mode);
  // The other modes are reported to behave like this one.
  if (config::amp_type(mode.as_string()) == "naive") erase(*fp16, "mode");
}

// Colossal-AI's models also take the number of chunks as an argument.
void move_chunks(json::Value& source) {
  json::Value* const model = block_of(source, "model");
  const json::Value* const chunks = model == nullptr ? nullptr : model->find("num_chunks");
  if (chunks == nullptr || source.find("NUM_CHUNKS") != nullptr) return;
  json::Value moved = *chunks;
  erase(*model, "num_chunks");
  source["NUM_CHUNKS"] = std::move(moved);
}

// Colossal-AI's sequence mode: ranks share the tokens, and all of them hold every weight.
void move_sequence_mode(json::Value& parallel) {
  json::Value* const tensor = block_of(parallel, "tensor");
  if (tensor == nullptr || !is_word(tensor->find("mode"), "sequence")) return;
  // Both are given: the mode is reported as unknown.
  if (parallel.find("context") != nullptr) return;
  json::Value context = std::move(*tensor);
  erase(context, "mode");
  context.key_place = context.place;
  erase(parallel, "tensor");
  parallel["context"] = std::move(context);
}

}  // namespace

json::Value spell_out_parallel(json::Value source) {
  if (!source.is_object()) return source;
  spell_out_deepspeed(source);
  move_interval(source);
  spell_out_mode(source);
  move_chunks(source);
  json::Value* const parallel = block_of(source, "parallel");
  if (parallel == nullptr) return source;
  std::erase_if(parallel->members(), [](const auto& member) { return member.second.is_null(); });
  for (const char* const key : {"pipeline", "tensor", "context"}) {
    json::Value* const value = parallel->find(key);
    if (value == nullptr || !value->is_number()) continue;
    const json::Place place = value->place;
    json::Value size = std::move(*value);
    *value = json::Value::object();
    (*value)["size"] = std::move(size);
    value->place = place;
  }
  move_sequence_mode(*parallel);
  return source;
}

json::Value in_current_names(json::Value source) {
  source = spell_out_parallel(std::move(source));
  config::Problems problems;
  json::Value renamed = with_new_names(source, problems);
  if (problems.empty()) return renamed;
  return source;
}

}  // namespace tessera::interop

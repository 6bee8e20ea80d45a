// SPDX-License-Identifier: Apache-2.0
// Everything is first converted to tessera's names (DeepSpeed's and some more), and from there to
// the target's. Source: Colossal-AI's CONFIG, DeepSpeed's configuration reference.
#include "tessera/interop/config_dialects.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/interop/colossal/gemini.h"
#include "tessera/interop/colossal/python_classes.h"
#include "tessera/interop/deepspeed/keys.h"
#include "tessera/interop/short_forms.h"
#include "tessera/planner/config_paths.h"

namespace tessera::interop {
namespace {

// The same value under another name.
struct Rename {
  std::string_view colossal, ours;
};
constexpr std::array<Rename, 14> kRenames = {{
    {"clip_grad_norm", "gradient_clipping"},
    {"NUM_EPOCHS", "trainer.epochs"},
    {"SEQ_LEN", "data.sequence_length"},
    {"SEQ_LENGTH", "data.sequence_length"},
    {"HIDDEN_SIZE", "model.hidden_size"},
    {"NUM_LAYERS", "model.num_layers"},
    {"DEPTH", "model.num_layers"},
    {"NUM_ATTENTION_HEADS", "model.num_heads"},
    {"VOCAB_SIZE", "model.vocab_size"},
    {"LEARNING_RATE", "optimizer.params.lr"},
    {"WEIGHT_DECAY", "optimizer.params.weight_decay"},
    {"seed", "trainer.seed"},
    {"SEED", "trainer.seed"},
    {"zero.model_config.gradient_predivide_factor", "gradient_predivide_factor"},
}};
// Arguments of Colossal-AI's scalers, with DeepSpeed's names.
constexpr std::array<Rename, 3> kScaler = {{
    {"growth_interval", "fp16.loss_scale_window"},
    {"hysteresis", "fp16.hysteresis"},
    {"min_scale", "fp16.min_loss_scale"},
}};
// Arguments of Colossal-AI's scaler, which is `fp16.scaler` "megatron" with the same names.
constexpr std::array<std::string_view, 7> kScalerWords = {"initial_scale",
                                                          "growth_interval",
                                                          "growth_factor",
                                                          "backoff_factor",
                                                          "hysteresis",
                                                          "min_scale",
                                                          "max_scale"};
// Keys only of Colossal-AI. `gradient_accumulation` alone is a common mistake in DeepSpeed files.
constexpr std::array<std::string_view, 16> kColossalOnly = {"clip_grad_norm",
                                                            "gemini",
                                                            "NUM_EPOCHS",
                                                            "SEQ_LEN",
                                                            "SEQ_LENGTH",
                                                            "HIDDEN_SIZE",
                                                            "BATCH_SIZE",
                                                            "NUM_CHUNKS",
                                                            "TENSOR_SHAPE",
                                                            "zero",
                                                            "torch_ddp",
                                                            "gradient_handler",
                                                            "cudnn_benchmark",
                                                            "cudnn_deterministic",
                                                            "LEARNING_RATE",
                                                            "WARMUP_EPOCHS"};
constexpr std::array<std::string_view, 5> kDeepSpeedSchedules = {
    "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"};
constexpr double kLargestWhole = 0x1p62;  // the range of a JSON integer
constexpr double kBytesPerMb = 1024.0 * 1024.0;
constexpr double kBytesPerElement = 2.0;  // for gradients of ZeRO's 16-bit weights

// A configuration from which values are taken one by one; the remaining ones have no counterpart.
// null counts as absent.
class UnreadKeys {
 public:
  explicit UnreadKeys(json::Value source) : source_(std::move(source)) {}

  std::optional<json::Value> take(std::string_view path) {
    auto value = take_from(source_, path);
    return value && value->is_null() ? std::nullopt : std::move(value);
  }
  std::optional<double> take_number(std::string_view path) {
    const auto value = take(path);
    if (!value || !value->is_number()) return std::nullopt;
    return value->as_double();
  }
  bool take_switch(std::string_view path) {
    const auto value = take(path);
    return value && value->is_bool() && value->as_bool();
  }
  std::string take_word(std::string_view path) {
    const auto value = take(path);
    return value && value->is_string() ? value->as_string() : "";
  }
  [[nodiscard]] const json::Value& rest() const { return source_; }
  /// Reverses the take of a path of two keys.
  void put_back(std::string_view path, json::Value value) {
    const std::size_t dot = path.find('.');
    json::Value& section = source_[path.substr(0, dot)];
    if (!section.is_object()) section = json::Value::object();
    section[path.substr(dot + 1)] = std::move(value);
  }

 private:
  // An object that becomes empty is removed with its last member.
  static std::optional<json::Value> take_from(json::Value& object, std::string_view path) {
    const std::size_t dot = path.find('.');
    const std::string_view key = path.substr(0, dot);
    json::Value* const found = object.find(key);
    if (found == nullptr) return std::nullopt;
    const bool inside = dot != std::string_view::npos;
    auto out = inside ? take_from(*found, path.substr(dot + 1))
                      : std::optional<json::Value>(std::move(*found));
    if (out && (!inside || found->members().empty()))
      std::erase_if(object.members(), [&](const auto& member) { return member.first == key; });
    return out;
  }

  json::Value source_;
};

void put(json::Value& out, std::string_view path, json::Value value) {
  json::Value* at = &out;
  for (const std::string& step : text::split(path, '.'))
    at = &(*at)[step];
  *at = std::move(value);
}
json::Value whole(double number) {
  if (std::abs(number) >= kLargestWhole) return json::Value::number(number);
  return json::Value::integer(std::llround(number));
}
json::Value word(std::string text) {
  return json::Value::string(std::move(text));
}

void note_leaves(const json::Value& value,
                 const std::string& path,
                 std::string_view where,
                 std::vector<std::string>& notes) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.members())
      note_leaves(member, json::join_path(path, key), where, notes);
    return;
  }
  if (value.is_null()) return;
  notes.push_back(fmt::format("{} = {} has no counterpart in {}", path, value.dump(), where));
}

// The value at `path`, or one in place of an enclosing object; nullptr if there is neither.
const json::Value* standing_at(const json::Value& source, std::string_view path) {
  const json::Value* at = &source;
  for (const std::string& step : text::split(path, '.')) {
    if (!at->is_object()) return at;
    at = at->find(step);
    if (at == nullptr) return nullptr;
  }
  return at;
}

bool is_megatrons(const json::Value& ours) {
  const json::Value* fp16 = ours.find("fp16");
  const json::Value* scaler = fp16 != nullptr && fp16->is_object() ? fp16->find("scaler") : nullptr;
  return scaler != nullptr && scaler->is_string() && scaler->as_string() == "megatron";
}

// ---- Colossal-AI to tessera ----

void batch_from_colossal(UnreadKeys& from, json::Value& out, std::vector<std::string>& notes) {
  const auto batch = from.take_number("BATCH_SIZE");
  const auto pieces = from.take_number("NUM_MICRO_BATCHES");
  const auto passes = from.take_number("gradient_accumulation");
  if (pieces || passes)
    put(out, "gradient_accumulation_steps", whole(pieces.value_or(1) * passes.value_or(1)));
  if (!batch) return;
  // BATCH_SIZE is what one data-parallel rank loads at a time; a pipeline divides it into
  // micro-batches.
  const double micro = *batch / pieces.value_or(1);
  if (micro == std::floor(micro)) return put(out, "train_micro_batch_size_per_gpu", whole(micro));
  notes.push_back(fmt::format(
      "BATCH_SIZE = {} is not a multiple of NUM_MICRO_BATCHES = {}", *batch, pieces.value_or(1)));
}

// Reads the arguments of the loss scaler at `section`; its rule is Megatron's by default.
void scaler_from_colossal(UnreadKeys& from, const std::string& section, bool on, json::Value& out) {
  put(out, "fp16.enabled", json::Value::boolean(on));
  put(out, "fp16.scaler", from.take(json::join_path(section, "scaler")).value_or(word("megatron")));
  // PyTorch's name for the initial scale, which AMP_TYPE.TORCH uses.
  if (auto value = from.take(json::join_path(section, "init_scale")))
    put(out, "fp16.initial_scale", std::move(*value));
  for (const std::string_view key : kScalerWords) {
    if (auto value = from.take(json::join_path(section, key)))
      put(out, json::join_path("fp16", key), std::move(*value));
  }
}

void fp16_from_colossal(UnreadKeys& from, json::Value& out, std::vector<std::string>& notes) {
  const auto block = from.rest().find("fp16");
  if (block == nullptr || !block->is_object()) return;
  const std::string mode = from.take_word("fp16.mode");
  if (mode.empty()) return;  // None disables it, and without a mode the keys are tessera's
  const auto enabled = from.take("fp16.enabled");
  const bool on = !enabled || !enabled->is_bool() || enabled->as_bool();
  scaler_from_colossal(from, "fp16", on, out);
  const std::string name = config::amp_type(mode);
  if (!on) return;
  if (name == "torch" || name == "apex") {
    notes.push_back(fmt::format(
        "fp16.mode = {}: there is one kind of fp16, with fp32 masters, as NAIVE has it", mode));
  }
}

void zero_from_colossal(UnreadKeys& from, json::Value& out) {
  const auto block = from.rest().find("zero");
  if (block == nullptr || !block->is_object()) return;
  put(out, "zero_optimization.stage", json::Value::integer(3));
  scaler_from_colossal(from, "zero.optimizer_config", /*on=*/true, out);
  if (const auto mb = from.take_number("zero.model_config.reduce_scatter_bucket_size_mb"))
    put(out, "zero_optimization.reduce_bucket_size", whole(*mb * kBytesPerMb / kBytesPerElement));
  if (from.take_switch("zero.model_config.fp32_reduce_scatter"))
    put(out, "communication_data_type", word("fp32"));
}

// Sets the value if the key is absent; if two values differ, notes the second.
void put_once(json::Value& out,
              const std::string& path,
              const json::Value& value,
              std::vector<std::string>& notes) {
  const json::Value* const there = standing_at(out, path);
  if (there == nullptr || there->is_null()) return put(out, path, value);
  if (*there == value) return;
  if (there->is_object() && value.is_object()) {
    for (const auto& [key, member] : value.members())
      put_once(out, json::join_path(path, key), member, notes);
    return;
  }
  notes.push_back(
      fmt::format("{} = {} is left out: another key says {}", path, value.dump(), there->dump()));
}

/// `model = dict(type="GPT2_exlarge", checkpoint=True)`: a preset, and recomputed activations.
void model_from_colossal(UnreadKeys& from, json::Value& out) {
  const auto type = from.take("model.type");
  if (type) {
    const auto preset = type->is_string() ? preset_of_python_class(type->as_string())
                                          : std::optional<std::string>();
    if (preset) {
      put(out, "model.preset", word(*preset));
    } else {
      from.put_back("model.type", *type);
    }
  }
  const auto checkpoint = from.take("model.checkpoint");
  if (!checkpoint) return;
  if (!checkpoint->is_bool()) return from.put_back("model.checkpoint", *checkpoint);
  if (checkpoint->as_bool()) put(out, "activation_checkpointing.granularity", word("full"));
}

void optimizer_from_colossal(UnreadKeys& from, json::Value& out, std::vector<std::string>& notes) {
  const std::string type = from.take_word("optimizer.type");
  if (!type.empty()) put_once(out, "optimizer.type", word(python_class_name(type)), notes);
  for (const char* key :
       {"lr", "betas", "eps", "weight_decay", "momentum", "nesterov", "adamw_mode"}) {
    if (const auto value = from.take(json::join_path("optimizer", key)))
      put_once(out, json::join_path("optimizer.params", key), *value, notes);
  }
}

bool is_section(const std::string& path) {
  const DeepSpeedKey* const row = find_deepspeed_key(path);
  if (row != nullptr && row->policy == KeyPolicy::Section) return true;
  const auto& own = planner::config_paths();
  return std::any_of(
      own.begin(), own.end(), [&](const std::string& key) { return key.starts_with(path + "."); });
}

bool is_known(const std::string& path) {
  const auto& own = planner::config_paths();
  return find_deepspeed_key(path) != nullptr ||
         std::find(own.begin(), own.end(), path) != own.end();
}

// Keeps keys of tessera and DeepSpeed, which `train` reads along with Colossal-AI's; notes others.
void keep_known(const json::Value& object,
                const std::string& path,
                json::Value& out,
                std::vector<std::string>& notes) {
  for (const auto& [key, value] : object.members()) {
    const std::string member = json::join_path(path, key);
    if (!is_known(member)) {
      note_leaves(value, member, "tessera", notes);
    } else if (value.is_object() && is_section(member) && !value.members().empty()) {
      keep_known(value, member, out, notes);
    } else if (!value.is_null()) {
      put_once(out, member, value, notes);
    }
  }
}

Converted from_colossal(const json::Value& source) {
  Converted out;
  out.value = json::Value::object();
  json::Value rest = source;
  const json::Value placement = take_placement(rest, out.notes);
  UnreadKeys from(std::move(rest));
  batch_from_colossal(from, out.value, out.notes);
  fp16_from_colossal(from, out.value, out.notes);
  zero_from_colossal(from, out.value);
  for (const auto& [key, value] : placement.members())
    put(out.value, json::join_path("zero_optimization", key), value);
  if (auto parallel = from.take("parallel")) put(out.value, "parallel", std::move(*parallel));
  auto chunks = from.take("NUM_CHUNKS");
  if (!chunks) chunks = from.take("model.num_chunks");
  if (chunks) {
    const json::Value* pipeline = out.value["parallel"].find("pipeline");
    if (pipeline != nullptr && pipeline->is_number())
      put(out.value, "parallel.pipeline", json::Value::object({{"size", *pipeline}}));
    put(out.value, "parallel.pipeline.chunks", std::move(*chunks));
  }
  for (const Rename& rename : kRenames) {
    if (auto value = from.take(rename.colossal)) put(out.value, rename.ours, std::move(*value));
  }
  if (from.take("TENSOR_SHAPE"))
    out.notes.emplace_back(
        "TENSOR_SHAPE has no counterpart in tessera: shapes are known before it runs");
  model_from_colossal(from, out.value);
  optimizer_from_colossal(from, out.value, out.notes);
  config::Problems problems;
  keep_known(with_new_names(from.rest(), problems), "", out.value, out.notes);
  for (const auto& problem : problems.list())
    out.notes.push_back(fmt::format("{}: {}", problem.path, problem.what));
  decay_as_torch(out.value);
  return out;
}

// ---- tessera to Colossal-AI ----

std::int64_t pipeline_size(const json::Value& source) {
  const json::Value* parallel = source.find("parallel");
  const json::Value* at =
      parallel != nullptr && parallel->is_object() ? parallel->find("pipeline") : nullptr;
  if (at != nullptr && at->is_object()) at = at->find("size");
  return at != nullptr && at->is_number() ? at->as_integer().value_or(1) : 1;
}

void batch_to_colossal(UnreadKeys& from, json::Value& out, std::int64_t stages) {
  const auto micro = from.take_number("train_micro_batch_size_per_gpu");
  const auto passes = from.take_number("gradient_accumulation_steps");
  const bool pipeline = stages > 1;
  if (passes) put(out, pipeline ? "NUM_MICRO_BATCHES" : "gradient_accumulation", whole(*passes));
  if (micro) put(out, "BATCH_SIZE", whole(*micro * (pipeline ? passes.value_or(1) : 1)));
}

void scaler_to_colossal(UnreadKeys& from, const std::string& section, json::Value& out) {
  for (const Rename& rename : kScaler) {
    if (auto value = from.take(rename.ours))
      put(out, json::join_path(section, rename.colossal), std::move(*value));
  }
  if (const auto power = from.take_number("fp16.initial_scale_power"))
    put(out, json::join_path(section, "initial_scale"), whole(std::exp2(*power)));
  if (!is_megatrons(from.rest())) return;
  from.take("fp16.scaler");
  for (const std::string_view key : kScalerWords) {
    if (auto value = from.take(json::join_path("fp16", key)))
      put(out, json::join_path(section, key), std::move(*value));
  }
}

void zero_to_colossal(UnreadKeys& from, json::Value& out, std::vector<std::string>& notes) {
  const auto stage = from.take_number("zero_optimization.stage");
  const bool fp16 = from.take_switch("fp16.enabled");
  const std::string param = from.take_word("zero_optimization.offload_param.device");
  const std::string optimizer = from.take_word("zero_optimization.offload_optimizer.device");
  if (stage != 3) {
    if (fp16) {
      put(out, "fp16.mode", word("AMP_TYPE.NAIVE"));
      scaler_to_colossal(from, "fp16", out);
    }
    if (stage.value_or(0) > 0) {
      notes.push_back(
          fmt::format("zero_optimization.stage = {} has no counterpart in Colossal-AI's "
                      "CONFIG, whose zero is stage 3",
                      *stage));
    }
    return;
  }
  if (!fp16) {
    notes.emplace_back(
        "zero_optimization.stage = 3 becomes zero, which trains in fp16: fp16.enabled is not true");
  }
  const bool cpu = param == "cpu" || optimizer == "cpu";
  put(out, "zero.model_config.tensor_placement_policy", word(cpu ? "cpu" : "cuda"));
  if (const auto elements = from.take_number("zero_optimization.reduce_bucket_size")) {
    put(out,
        "zero.model_config.reduce_scatter_bucket_size_mb",
        json::Value::number(*elements * kBytesPerElement / kBytesPerMb));
  }
  scaler_to_colossal(from, "zero.optimizer_config", out);
}

Converted to_colossal(const json::Value& ours) {
  Converted out;
  out.value = json::Value::object();
  UnreadKeys from(ours);
  batch_to_colossal(from, out.value, pipeline_size(ours));
  zero_to_colossal(from, out.value, out.notes);
  if (auto chunks = from.take("parallel.pipeline.chunks"))
    put(out.value, "NUM_CHUNKS", std::move(*chunks));
  if (auto parallel = from.take("parallel")) put(out.value, "parallel", std::move(*parallel));
  for (const Rename& rename : kRenames) {
    // If two names correspond to one key, the first is written.
    if (auto value = from.take(rename.ours)) put(out.value, rename.colossal, std::move(*value));
  }
  note_leaves(from.rest(), "", "Colossal-AI's CONFIG", out.notes);
  return out;
}

// ---- DeepSpeed and tessera ----

Converted from_deepspeed(const json::Value& source) {
  Converted out;
  config::Problems problems;
  auto taken = take_deepspeed_keys(
      with_new_names(spell_out_parallel(source), problems), planner::config_paths(), problems);
  out.value = std::move(taken.left);
  for (config::TakenKey& key : taken.automatic)
    put(out.value, key.path, std::move(key.value));
  for (const config::TakenKey& key : taken.accepted) {
    out.notes.push_back(fmt::format(
        "{} = {} has no counterpart in tessera: {}", key.path, key.value.dump(), key.why));
  }
  for (const auto& problem : problems.list())
    out.notes.push_back(fmt::format("{} is left out: {}", problem.path, problem.what));
  return out;
}

// Keeps DeepSpeed's keys and notes the others.
json::Value keep_deepspeed(const json::Value& object,
                           const std::string& path,
                           std::vector<std::string>& notes) {
  json::Value out = json::Value::object();
  for (const auto& [key, value] : object.members()) {
    const std::string member = json::join_path(path, key);
    const DeepSpeedKey* row = find_deepspeed_key(member);
    if (row == nullptr || is_colossalai_key(member)) {
      note_leaves(value, member, "DeepSpeed", notes);
    } else if (row->policy == KeyPolicy::Section && value.is_object()) {
      json::Value inner = keep_deepspeed(value, member, notes);
      if (!inner.members().empty()) out[key] = std::move(inner);
    } else {
      out[key] = value;
    }
  }
  return out;
}

// Expresses Megatron's scaler with DeepSpeed's keys, as far as possible.
json::Value with_deepspeeds_scaler(const json::Value& ours, std::vector<std::string>& notes) {
  if (!is_megatrons(ours)) return ours;
  notes.emplace_back(
      "fp16.scaler = \"megatron\" has no counterpart in DeepSpeed, whose own rule takes its place");
  UnreadKeys from(ours);
  json::Value moved = json::Value::object();
  from.take("fp16.scaler");
  for (const Rename& rename : kScaler) {
    auto value = from.take(json::join_path("fp16", rename.colossal));
    if (value) put(moved, rename.ours, std::move(*value));
  }
  if (const auto scale = from.take_number("fp16.initial_scale")) {
    const double power = std::round(std::log2(std::max(*scale, 1.0)));
    put(moved, "fp16.initial_scale_power", whole(power));
    if (std::exp2(power) != *scale)
      notes.push_back(fmt::format("fp16.initial_scale = {} becomes 2 to the power of {}",
                                  text::number(*scale),
                                  text::number(power)));
  }
  // The fixed factors of DeepSpeed's scale.
  for (const auto& [key, fixed] :
       {std::pair("fp16.growth_factor", 2.0), std::pair("fp16.backoff_factor", 0.5)}) {
    UnreadKeys probe(from.rest());
    if (probe.take_number(key) == fixed) from.take(key);
  }
  json::Value out = from.rest();
  const json::Value* words = moved.find("fp16");
  if (words == nullptr) return out;
  for (const auto& [key, value] : words->members())
    out["fp16"][key] = value;
  return out;
}

Converted to_deepspeed(const json::Value& ours) {
  Converted out;
  UnreadKeys from(with_deepspeeds_scaler(ours, out.notes));
  json::Value moved = json::Value::object();
  const std::int64_t stages = pipeline_size(ours);
  if (stages > 1) {
    if (!from.take("parallel.pipeline.size")) from.take("parallel.pipeline");
    put(moved, "pipeline.stages", json::Value::integer(stages));
    // Colossal-AI's partitions have the same names; it has none by predicted work, and none by
    // bounds.
    const std::string partition = UnreadKeys(from.rest()).take_word("parallel.pipeline.partition");
    if (!partition.empty() && partition != "balanced")
      put(moved, "pipeline.partition", *from.take("parallel.pipeline.partition"));
  }
  const std::string mode = text::lower(from.take_word("parallel.tensor.mode"));
  if (mode.empty() || mode == "1d") {
    const auto size = from.take("parallel.tensor.size");
    if (size && size->is_number()) put(moved, "tensor_parallel.autotp_size", *size);
  } else {
    out.notes.push_back(
        fmt::format("parallel.tensor.mode = \"{}\" has no counterpart in DeepSpeed", mode));
  }
  if (auto drop = from.take("data.drop_last")) put(moved, "dataloader_drop_last", std::move(*drop));
  const std::string type = UnreadKeys(from.rest()).take_word("scheduler.type");
  const auto schedule =
      std::find_if(kDeepSpeedSchedules.begin(), kDeepSpeedSchedules.end(), [&](const auto& name) {
        return text::lower(name) == text::lower(type);
      });
  const bool known = schedule != kDeepSpeedSchedules.end();
  if (!type.empty() && !known)
    note_leaves(*from.take("scheduler"), "scheduler", "DeepSpeed", out.notes);
  out.value = keep_deepspeed(from.rest(), "", out.notes);
  if (known) put(out.value, "scheduler.type", word(std::string(*schedule)));
  for (auto& [key, value] : moved.members())
    out.value[key] = std::move(value);
  return out;
}

}  // namespace

Dialect dialect_named(std::string_view name) {
  static const std::vector<std::string> names = {"tessera", "deepspeed", "colossalai"};
  const std::string lower = text::lower(name);
  if (lower == names[0]) return Dialect::Tessera;
  if (lower == names[1]) return Dialect::DeepSpeed;
  if (lower == names[2] || lower == "colossal-ai" || lower == "colossal")
    return Dialect::ColossalAi;
  throw Error(Error::Kind::Config,
              fmt::format("--to {}: expected tessera, deepspeed or colossalai", name),
              text::suggestion(lower, names));
}

Dialect dialect_of(const json::Value& source) {
  TESSERA_REQUIRE(
      source.is_object(),
      Config,
      fmt::format("{}: expected an object, found {}", source.place.text(), source.type_name()),
      "write { ... }");
  const auto has = [&](std::string_view key) { return source.find(key) != nullptr; };
  const json::Value* fp16 = source.find("fp16");
  const bool mode = fp16 != nullptr && fp16->is_object() && fp16->find("mode") != nullptr &&
                    fp16->find("enabled") == nullptr;
  const bool own = std::any_of(kColossalOnly.begin(), kColossalOnly.end(), has);
  if (own || mode) return Dialect::ColossalAi;
  return is_pure_deepspeed(source, planner::config_paths()) ? Dialect::DeepSpeed : Dialect::Tessera;
}

Converted convert_config(const json::Value& source, Dialect to) {
  return convert_config(source, dialect_of(source), to);
}

Converted convert_config(const json::Value& source, Dialect from, Dialect to) {
  if (from == to) return {source, {}};
  // Colossal-AI's keys are compared with what is written, not with what is supported here.
  const bool direct = to == Dialect::ColossalAi || from == Dialect::Tessera;
  // Short forms that both have are kept.
  const bool short_forms = to == Dialect::ColossalAi && from == Dialect::Tessera;
  config::Problems problems;
  Converted ours =
      direct && from != Dialect::ColossalAi
          ? Converted{with_new_names(short_forms ? source : spell_out_parallel(source), problems),
                      {}}
      : from == Dialect::ColossalAi ? from_colossal(source)
                                    : from_deepspeed(source);
  if (to == Dialect::Tessera) return ours;
  Converted out = to == Dialect::DeepSpeed ? to_deepspeed(ours.value) : to_colossal(ours.value);
  out.notes.insert(out.notes.begin(), ours.notes.begin(), ours.notes.end());
  for (const auto& problem : problems.list())
    out.notes.push_back(fmt::format("{}: {}", problem.path, problem.what));
  return out;
}

namespace {
constexpr config::KeyDialect kDialect{spell_out_parallel, with_new_names, take_deepspeed_keys};
const bool kRegisteredKeys = config::key_dialects().add("configuration files", kDialect);
}  // namespace

}  // namespace tessera::interop

// SPDX-License-Identifier: Apache-2.0
// axolotl's `axolotl train FILE.yml`.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/interop/axolotl/command_data.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/command_members.h"
#include "tessera/interop/dataset_names.h"
#include "tessera/interop/huggingface/trainer_rules.h"
#include "tessera/interop/option_table.h"
#include "tessera/interop/peft/command_rules.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using Setting = ForeignFlags::Setting;

constexpr std::string_view kRows =
#include "tessera/interop/axolotl/options.inc"
    ;
const bool kTables = add_option_tables("axolotl", kRows);

void add_setting(Meaning& meaning, const Setting* from, std::string key, json::Value value) {
  const std::string flag = from == nullptr ? meaning.program : from->flag;
  meaning.flags.settings.push_back({flag, std::move(key), std::move(value)});
}

// ---- what is learned ----

void set_supervised(Meaning& meaning) {
  meaning.set("task.type", json::Value::string("sft"));
  const bool all = meaning.is_on("@train_on_inputs");
  meaning.set("task.params.loss_on",
              json::Value::string(all ? "all" : "assistant"),
              meaning.find("@train_on_inputs"));
  const json::Value* const format = meaning.value("data.format");
  if (format != nullptr && format->as_string() == "alpaca") {
    meaning.note(
        "type alpaca: instruction and input become a message of the model's chat template, not "
        "Alpaca's own prompt; task.params.chat_template names a file with that prompt");
  }
  if (format != nullptr && format->as_string() == "text")
    meaning.set("task.params.loss_on", json::Value::string("all"), meaning.find("@datasets"));
  if (meaning.is_on("@eaft")) {
    // axolotl does not divide the entropy.
    meaning.set("task.params.token_weights", json::Value::string("entropy"), meaning.find("@eaft"));
    meaning.copy("task.params.token_weight_params.alpha", meaning.find("@eaft_alpha"));
    meaning.copy("task.params.token_weight_params.top_k", meaning.find("@eaft_k"));
    meaning.set(
        "task.params.token_weight_params.scale", json::Value::integer(1), meaning.find("@eaft"));
  }
  const bool packs = meaning.is_on("@packing");
  meaning.set("data.pack", json::Value::boolean(packs), meaning.find("@packing"));
  const std::string name = meaning.text("@chat_template");
  if (meaning.given("@chat_template_jinja") != nullptr) {
    meaning.copy("task.params.chat_template", meaning.given("@chat_template_jinja"));
  } else if (name == "chatml") {
    meaning.set(
        "task.params.chat_template", json::Value::string("chatml"), meaning.find("@chat_template"));
  } else if (!name.empty() && name != "tokenizer_default") {
    meaning.note(fmt::format("{} {}: the chat template of the model's folder is used",
                             meaning.find("@chat_template")->flag,
                             name));
  }
}

void set_preference(Meaning& meaning, const std::string& method) {
  const Setting* const from = meaning.find("@rl");
  meaning.set("task.type", json::Value::string("prefer"), from);
  meaning.set("task.params.method", json::Value::string(method == "ipo" ? "dpo" : method), from);
  if (method == "ipo") meaning.set("task.params.loss.type", json::Value::string("ipo"), from);
  meaning.copy("task.params.loss.beta", meaning.given("@rl_beta"));
  if (method == "simpo") meaning.copy("task.params.loss.gamma", meaning.given("@simpo_gamma"));
  if (method == "kto") {
    meaning.copy("task.params.loss.desirable_weight", meaning.given("@kto_chosen"));
    meaning.copy("task.params.loss.undesirable_weight", meaning.given("@kto_rejected"));
  }
  if (method == "dpo") {
    meaning.copy("task.params.loss.label_smoothing", meaning.given("@pref_smoothing"));
    meaning.copy("task.params.loss.type", meaning.given("@dpo_loss"));
    meaning.copy("task.params.loss.weights", meaning.given("@dpo_weights"));
    meaning.copy("task.params.loss.on_policy_weights", meaning.given("@dpo_weighting"));
  }
}

void set_task(Meaning& meaning) {
  const std::string rl = text::lower(meaning.text("@rl"));
  const Setting* const pretraining = meaning.given("@pretraining");
  const Setting* const data = meaning.given("@datasets");
  const bool supervised = rl.empty() && !meaning.is_on("@reward_model") && pretraining == nullptr;
  if (pretraining != nullptr) {
    const Setting copy = *pretraining;
    axolotl::set_data(meaning, copy, "data.train", false);
  } else if (data != nullptr) {
    const Setting copy = *data;
    axolotl::set_data(meaning, copy, "data.train", supervised);
  } else {
    meaning.refuse(fmt::format("{} without data", meaning.program), "name it: datasets");
  }
  if (const Setting* const test = meaning.given("@test_datasets")) {
    const Setting copy = *test;
    axolotl::set_data(meaning, copy, "data.validation", false);
  }
  if (pretraining != nullptr) {
    meaning.set("task.type", json::Value::string("pretrain"), pretraining);
  } else if (meaning.is_on("@reward_model")) {
    meaning.set("task.type", json::Value::string("reward"), meaning.find("@reward_model"));
    meaning.copy("task.params.centering", meaning.given("@centering"));
  } else if (supervised) {
    set_supervised(meaning);
    if (const Setting* const streams = meaning.given("@streaming");
        streams != nullptr && meaning.is_on("@streaming"))
      meaning.set("data.streaming", json::Value::integer(1), streams);
  } else if (rl == "dpo" || rl == "ipo" || rl == "kto" || rl == "orpo" || rl == "simpo") {
    set_preference(meaning, rl);
  } else {
    meaning.refuse(fmt::format("{} {} is not supported", meaning.find("@rl")->flag, rl),
                   rl == "grpo"
                       ? "its rewards are Python functions: use the task rl, tessera init --task rl"
                       : "use dpo, ipo, kto, orpo or simpo");
  }
}

// ---- weights, length, precision ----

// Weights of gpt-oss in mxfp4 are read into the type of the run, which is what axolotl must be
// asked for.
void check_stored_weights(Meaning& meaning) {
  const Setting* const format = meaning.given("@weights_format");
  if (format == nullptr) return;
  const Setting* const options = meaning.given("@weights_format_options");
  const json::Value* const whole = options == nullptr || !options->value.is_object()
                                       ? nullptr
                                       : options->value.find("dequantize");
  const std::string name = meaning.text("@weights_format");
  if (name == "Mxfp4Config" && whole != nullptr && whole->is_bool() && whole->as_bool()) return;
  meaning.refuse(fmt::format("{} {} is not supported", format->flag, name),
                 "use Mxfp4Config with dequantize: true, or load_in_4bit");
}

void set_weights(Meaning& meaning) {
  check_stored_weights(meaning);
  const std::string type = text::lower(meaning.text("@adapter"));
  const Setting* const from = meaning.given("@adapter");
  if (type.empty()) return;
  if (type != "lora" && type != "qlora") {
    meaning.refuse(fmt::format("{} {} is not supported", from->flag, type), "use lora or qlora");
    return;
  }
  for (const auto& [name, key] : {std::pair("@load4", "@nf4"), std::pair("@load8", "@int8")}) {
    if (meaning.is_on(name))
      add_setting(meaning, meaning.find(name), key, json::Value::boolean(true));
  }
  add_setting(meaning, from, "@nested", json::Value::boolean(meaning.is_on("@nf4")));
  const bool linear = meaning.is_on("@linear");
  if (linear)
    add_setting(
        meaning, meaning.find("@linear"), "@lora_targets", json::Value::string("all-linear"));
  peft::set_adapter(meaning, {.from = meaning.given("@adapter"), .default_targets = !linear});
  meaning.copy("adapter.from", meaning.given("@adapter_from"));
}

// The whole batch of a rank is reached by accumulation, if that is not given.
void set_accumulation(Meaning& meaning) {
  const Setting* const whole = meaning.given("@whole_batch");
  if (whole == nullptr) return;
  if (meaning.given("gradient_accumulation_steps") != nullptr) {
    meaning.note(
        fmt::format("{} has no effect: gradient_accumulation_steps is given", whole->flag));
    return;
  }
  const double micro = meaning.number("train_micro_batch_size_per_gpu").value_or(1);
  const auto steps = static_cast<std::int64_t>(whole->value.as_double() / std::max(micro, 1.0));
  if (steps < 1) {
    meaning.refuse(fmt::format("{}: less than micro_batch_size", whole->flag), "raise it");
    return;
  }
  meaning.set("gradient_accumulation_steps", json::Value::integer(steps), whole);
}

// The configuration of the model's folder; null if it cannot be read.
json::Value config_of_model(const Meaning& meaning) {
  const fs::path file = hub::model_path(meaning.text("@model")) / "config.json";
  try {
    return json::parse_strict(files::read(file), file.string());
  } catch (const Error&) {
    return {};  // the training says what is wrong with the folder
  }
}

// Keys of config.json that the command changes.
void set_model_config(Meaning& meaning) {
  const Setting* const changes = meaning.given("@model_config");
  const Setting* const rows = meaning.is_on("@rows_of_32") ? meaning.given("@rows_of_32") : nullptr;
  if (rows != nullptr) {
    const json::Value config = config_of_model(meaning);
    const json::Value* const size = config.is_object() ? config.find("vocab_size") : nullptr;
    const auto count = size != nullptr && size->is_number() ? size->as_integer() : std::nullopt;
    if (count && *count % 32 != 0)
      meaning.refuse(
          fmt::format(
              "{}: the {} rows of the model's embedding are no multiple of 32", rows->flag, *count),
          "remove it: rows without a token are not needed here");
  }
  if (changes == nullptr || !changes->value.is_object()) return;
  for (const auto& [key, value] : changes->value.members()) {
    const std::string typed = fmt::format("{}: {}", value.key_place.text(), key);
    const json::Value config = config_of_model(meaning);
    const json::Value* const own = config.is_object() ? config.find(key) : nullptr;
    if (value.is_null() || (own != nullptr && own->dump() == value.dump())) continue;
    if (key == "output_router_logits" && value.is_bool()) {
      const json::Value* const share =
          config.is_object() ? config.find("router_aux_loss_coef") : nullptr;
      const double coefficient =
          share != nullptr && share->is_number() ? share->as_double() : 0.001;
      if (share == nullptr && value.as_bool())
        meaning.note(fmt::format("{}: router_aux_loss_coef is the usual 0.001", typed));
      const Setting from{typed, "@model_config", value};
      meaning.set("model.moe.losses.balance",
                  json::Value::number(value.as_bool() ? coefficient : 0.0),
                  &from);
      continue;
    }
    meaning.refuse(fmt::format("{} is not supported", typed),
                   "set it in config.json of the model's folder");
  }
}

void set_precision(Meaning& meaning) {
  const std::string bf16 = text::lower(meaning.text("@bf16", "auto"));
  const std::string fp16 = text::lower(meaning.text("@fp16", "false"));
  const Setting* const from = meaning.find("@bf16");
  // "auto" is bf16 on every device that has it.
  const bool half = fp16 == "true" || meaning.is_on("@float16");
  if (bf16 == "true" || bf16 == "full" || (bf16 == "auto" && !half) || meaning.is_on("@bfloat16")) {
    meaning.set("bf16.enabled", json::Value::boolean(true), from);
    if (bf16 == "full")
      meaning.set("bf16.bf16_master_weights_and_grads", json::Value::boolean(true), from);
  } else if (half) {
    meaning.set("fp16.enabled", json::Value::boolean(true), meaning.find("@fp16"));
  }
  const std::string recompute = text::lower(meaning.text("@recompute", "false"));
  meaning.set("activation_checkpointing.enabled",
              json::Value::boolean(recompute != "false"),
              meaning.find("@recompute"));
}

// Evaluations and saves in an epoch are shares of all updates.
void set_intervals(Meaning& meaning) {
  const double epochs = meaning.number("@epochs").value_or(1.0);
  const auto spread = [&](const char* each, const char* strategy, const char* steps) {
    const Setting* const count = meaning.given(each);
    const Setting* const own = meaning.given(steps);
    if (count != nullptr && count->value.as_double() > 0) {
      const double share = 1.0 / (count->value.as_double() * epochs);
      const Setting from = *count;
      add_setting(meaning, &from, strategy, json::Value::string("steps"));
      if (share >= 1) {
        add_setting(meaning, &from, strategy, json::Value::string("epoch"));
      } else {
        add_setting(meaning, &from, steps, json::Value::number(share));
      }
    } else if (own != nullptr && meaning.given(strategy) == nullptr) {
      const Setting from = *own;
      add_setting(meaning, &from, strategy, json::Value::string("steps"));
    } else if (meaning.given(strategy) == nullptr) {
      const bool none = count != nullptr || std::string_view(each) == "@evals_per_epoch";
      add_setting(meaning, count, strategy, json::Value::string(none ? "no" : "epoch"));
    }
  };
  spread("@evals_per_epoch", "@eval_strategy", "@eval_steps");
  spread("@saves_per_epoch", "@save_strategy", "@save_steps");
  // Without data to evaluate there are no evaluations.
  if (meaning.value("data.validation") == nullptr &&
      meaning.value("data.validation_fraction") == nullptr)
    add_setting(meaning, nullptr, "@eval_strategy", json::Value::string("no"));
  if (meaning.given("@log_steps") == nullptr)
    add_setting(meaning, nullptr, "@log_steps", json::Value::integer(10));
}

void set_schedule(Meaning& meaning) {
  const Setting* const ratio = meaning.given("@min_ratio");
  if (ratio != nullptr && ratio->value.as_double() > 0) {
    const Setting from = *ratio;
    add_setting(meaning, &from, "@schedule", json::Value::string("cosine_with_min_lr"));
    add_setting(
        meaning, &from, "@schedule_params", json::Value::object({{"min_lr_rate", from.value}}));
  } else if (const Setting* const lowest = meaning.given("@eta_min")) {
    const Setting from = *lowest;
    add_setting(meaning, &from, "@schedule", json::Value::string("cosine_with_min_lr"));
    add_setting(meaning, &from, "@schedule_params", json::Value::object({{"min_lr", from.value}}));
  }
  const Setting* const constant = meaning.given("@constant_ratio");
  if (constant != nullptr && constant->value.as_double() > 0)
    meaning.refuse(fmt::format("{} is not supported", constant->flag),
                   "use lr_scheduler warmup_stable_decay");
  const std::string name = meaning.text("@schedule", "cosine");
  if (name == "one_cycle" || name == "rex")
    meaning.refuse(fmt::format("{} {} is not supported", meaning.find("@schedule")->flag, name),
                   "use cosine, linear or constant");
}

// special_tokens that only name tokens which the tokenizer has anyway.
void check_tokens(Meaning& meaning) {
  const Setting* const special = meaning.given("@special_tokens");
  if (special == nullptr || !special->value.is_object()) return;
  for (const auto& [key, value] : special->value.members()) {
    if (value.is_null() || key == "pad_token") continue;
    meaning.note(
        fmt::format("{}: {} is that of the model's tokenizer", value.key_place.text(), key));
  }
  for (const char* name : {"@tokens"}) {
    const Setting* const more = meaning.given(name);
    if (more != nullptr && more->value.is_array() && !more->value.items().empty())
      meaning.refuse(fmt::format("{} is not supported", more->flag),
                     "add the tokens to the model's folder");
  }
}

// Ray starts as many workers, which are ranks here.
void set_workers(Meaning& meaning) {
  const auto workers = static_cast<std::int64_t>(meaning.number("@ray_workers").value_or(1));
  if (!meaning.is_on("@ray") || workers < 1 || meaning.ranks) return;
  meaning.ranks = workers;
  meaning.note(fmt::format(
      "{}: {} local ranks in place of its workers", meaning.find("@ray")->flag, workers));
}

void set_layout(Meaning& meaning) {
  const Setting *const deepspeed = meaning.given("@deepspeed"),
                       *const fsdp = meaning.given("@fsdp"),
                       *const config = meaning.given("@fsdp_config");
  const bool has_fsdp = fsdp != nullptr || (config != nullptr && config->value.is_object());
  if (deepspeed != nullptr && has_fsdp) {
    meaning.refuse(fmt::format("{} and FSDP at once", deepspeed->flag), "keep one of them");
  } else if (has_fsdp) {
    std::string strategy = "full_shard";
    if (fsdp != nullptr && fsdp->value.is_array()) {
      for (const json::Value& word : fsdp->value.items()) {
        if (word.is_string() && word.as_string().find("shard") != std::string::npos)
          strategy = word.as_string();
      }
    }
    if (config != nullptr && config->value.is_object()) {
      check_members(meaning, config->value, "axolotl/fsdp");
      for (const char* name : {"activation_checkpointing", "fsdp_activation_checkpointing"}) {
        const json::Value* const recompute = config->value.find(name);
        if (recompute != nullptr && recompute->is_bool() && recompute->as_bool())
          meaning.set("activation_checkpointing.enabled", *recompute, config);
      }
      const json::Value* const reshard = config->value.find("reshard_after_forward");
      if (reshard != nullptr && reshard->is_bool() && !reshard->as_bool())
        strategy = "shard_grad_op";
    }
    meaning.set("zero_optimization.stage",
                json::Value::integer(strategy == "shard_grad_op" ? 2
                                     : strategy == "no_shard"    ? 0
                                                                 : 3),
                fsdp != nullptr ? fsdp : config);
  } else if (deepspeed != nullptr) {
    const std::string& file = deepspeed->value.as_string();
    const auto found = file.find("zero");
    const std::string_view stages = "123";
    if (found != std::string::npos && found + 4 < file.size() &&
        stages.find(file[found + 4]) != std::string_view::npos) {
      meaning.set(
          "zero_optimization.stage", json::Value::integer(file[found + 4] - '0'), deepspeed);
    } else {
      meaning.refuse(
          fmt::format("{} {}: the stage is not in the name of the file", deepspeed->flag, file),
          "name one of axolotl's files, such as deepspeed_configs/zero2.json, or give --set "
          "zero_optimization.stage=2");
    }
  }
}

// Quantization-aware training: the formats of torchao that axolotl can choose.
void set_qat(Meaning& meaning) {
  const Setting* const given = meaning.given("@qat");
  if (given == nullptr || !given->value.is_object()) return;
  const Setting from = *given;
  const auto word = [&](const char* key, const char* absent) {
    const json::Value* const value = from.value.find(key);
    if (value == nullptr || value->is_null()) return std::string(absent);
    std::string name = value->is_string() ? text::lower(value->as_string()) : value->dump();
    if (name == "float8" || name == "float8_e4m3fn") name = "fp8";
    return name;
  };
  const std::string weights = word("weight_dtype", "int8");
  std::string activations = word("activation_dtype", "none");
  if (weights != "int4" && weights != "fp8" && weights != "mxfp4" && weights != "nvfp4") {
    meaning.refuse(fmt::format("{}: weight_dtype {} is not supported", from.flag, weights),
                   "use int4, fp8, mxfp4 or nvfp4");
    return;
  }
  // Unless inputs are int8, torchao rounds weights to fp8 before it rounds them to int4.
  if (weights == "int4" && activations != "int8") {
    meaning.refuse(
        fmt::format("{}: int4 without activation_dtype int8 rounds weights twice", from.flag),
        "use activation_dtype int8, or weight_dtype fp8");
    return;
  }
  if (weights == "fp8" && activations != "fp8") {
    meaning.refuse(
        fmt::format("{}: fp8 weights with activation_dtype {} are an error of axolotl's too",
                    from.flag,
                    activations),
        "use activation_dtype fp8");
    return;
  }
  // MX formats round both operands.
  if (weights == "mxfp4") activations = "mxfp4";
  // axolotl builds torchao's configuration of weights alone, whatever the inputs shall be.
  if (weights == "nvfp4" && activations != "none") {
    meaning.note(fmt::format(
        "{}: activation_dtype {} has no effect, because axolotl rounds nvfp4 weights alone",
        from.flag,
        activations));
    activations = "none";
  }
  if (word("quantize_embedding", "false") == "true")
    meaning.refuse(fmt::format("{}: quantize_embedding is not supported", from.flag), "remove it");
  meaning.set("qat.weights", json::Value::string(weights), &from);
  meaning.set("qat.activations", json::Value::string(activations), &from);
  const json::Value* const group = from.value.find("group_size");
  if (weights == "int4")
    meaning.set("qat.group_size",
                group != nullptr && group->is_number() ? *group : json::Value::integer(32),
                &from);
  const json::Value* const after = from.value.find("fake_quant_after_n_steps");
  if (after != nullptr && after->is_number()) meaning.set("qat.after_steps", *after, &from);
}

// A revision belongs to the name of a model.
void set_revision(Meaning& meaning) {
  const Setting* const revision = meaning.given("@revision");
  const std::string name = meaning.text("@model");
  if (revision == nullptr || name.find('@') != std::string::npos) return;
  const std::string word = meaning.text("@revision");
  if (!word.empty() && hub::is_model_name(name + "@" + word)) {
    for (Setting& one : meaning.flags.settings) {
      if (one.key == "@model") one.value = json::Value::string(name + "@" + word);
    }
  }
}

// With an adapter, only the adapter is trained, whatever else the patterns name.
void set_unfrozen(Meaning& meaning) {
  const Setting* const patterns = meaning.given("@unfrozen");
  if (patterns == nullptr || !patterns->value.is_array() || patterns->value.items().empty()) return;
  const Setting from = *patterns;
  if (!meaning.text("@adapter").empty()) {
    meaning.note(fmt::format("{} has no effect: the adapter alone is trained", from.flag));
    return;
  }
  json::Value out = json::Value::array();
  for (const json::Value& item : from.value.items()) {
    const std::string pattern = item.is_string() ? item.as_string() : item.dump();
    const std::size_t range = pattern.rfind('[');
    if (range != std::string::npos && pattern.ends_with(']') &&
        pattern.find_first_not_of("0123456789:", range + 1) == pattern.size() - 1) {
      meaning.refuse(fmt::format("{}: {} trains some rows of a tensor", from.flag, pattern),
                     "train all of it: remove the range");
      continue;
    }
    // axolotl compares from the beginning of a name, and a dot is a dot unless a plus follows.
    const bool alternatives = pattern.find('|') != std::string::npos;
    std::string regex = alternatives ? "^(?:" : pattern.starts_with('^') ? "" : "^";
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      const bool dot = pattern[i] == '.' && (i + 1 == pattern.size() || pattern[i + 1] != '+');
      regex += dot ? "\\." : std::string(1, pattern[i]);
    }
    if (alternatives) regex += ")";
    out.push_back(json::Value::string(regex));
  }
  meaning.set("optimizer.trained", std::move(out), &from);
}

void train(Meaning& meaning) {
  set_revision(meaning);
  huggingface::use_model(meaning, meaning.given("@model"));
  if (meaning.given("@model") == nullptr)
    meaning.refuse(fmt::format("{} without a model", meaning.program), "name it: base_model");
  const Setting* const size = meaning.given("@val_size");
  if (size != nullptr && size->value.as_double() > 0 && size->value.as_double() < 1) {
    meaning.copy("data.validation_fraction", size);
  } else if (size != nullptr && size->value.as_double() >= 1) {
    meaning.refuse(fmt::format("{}: expected a share below 1", size->flag), "val_set_size: 0.05");
  }
  set_task(meaning);
  set_model_config(meaning);
  set_accumulation(meaning);
  set_weights(meaning);
  set_intervals(meaning);
  set_schedule(meaning);
  check_tokens(meaning);
  set_layout(meaning);
  set_workers(meaning);
  set_unfrozen(meaning);
  set_qat(meaning);
  // apply_trainer() reads switches for precision, and axolotl has words.
  const auto is_word = [](const Setting& one) { return one.key == "@bf16" || one.key == "@fp16"; };
  ForeignFlags flags = meaning.flags, defaults = meaning.defaults;
  std::erase_if(meaning.flags.settings, is_word);
  std::erase_if(meaning.defaults.settings, is_word);
  huggingface::apply_trainer(meaning);
  meaning.flags = std::move(flags);
  meaning.defaults = std::move(defaults);
  set_precision(meaning);
  if (meaning.value("eval.micro_batch") == nullptr && meaning.value("eval") != nullptr)
    meaning.copy("eval.micro_batch", meaning.find("train_micro_batch_size_per_gpu"));
  if (const Setting* const project = meaning.given("@wandb_project");
      project != nullptr && !meaning.text("@wandb_project").empty()) {
    meaning.set("wandb.enabled", json::Value::boolean(true), project);
    meaning.copy("wandb.project", project);
  }
}

constexpr std::string_view kAlways =
    R"({"data": {"drop_last": false}, "eval": {"batches": 1000000000}, "trainer": {"seed": 42}, "gradient_clipping": 1.0})";

const bool kPrograms = add_programs({
    {.title = "axolotl's train",
     .names = {"axolotl train", "axolotl.cli.train", "axolotl sft"},
     .tables = {"axolotl/train"},
     .always = kAlways,
     .rules = train,
     .file = "-"},
    {.title = "axolotl's preprocess",
     .names = {"axolotl preprocess", "axolotl.cli.preprocess"},
     .tables = {"axolotl/train"},
     .refused = "data is tokenized when a training starts, and cached",
     .instead = "tessera axolotl train FILE.yml --dry-run"},
    {.title = "axolotl's merge-lora",
     .names = {"axolotl merge-lora", "axolotl.cli.merge_lora"},
     .tables = {"axolotl/train"},
     .refused = "a merged model is written by another command",
     .instead = "tessera adapter merge RUN OUT"},
    {.title = "axolotl's inference",
     .names = {"axolotl inference", "axolotl.cli.inference", "axolotl evaluate"},
     .tables = {"axolotl/train"},
     .refused = "it trains nothing",
     .instead = "tessera chat RUN, or tessera eval RUN"},
});

}  // namespace
}  // namespace tessera::interop

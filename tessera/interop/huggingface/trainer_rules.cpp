// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/trainer_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/config/overrides.h"
#include "tessera/data/records.h"
#include "tessera/data/slices.h"
#include "tessera/interop/dataset_names.h"

namespace tessera::interop::huggingface {
namespace {

using Setting = ForeignFlags::Setting;

/// More steps than any training has: an evaluation at the end alone.
constexpr std::int64_t kAtTheEnd = 1'000'000'000;

/// A name of the Trainer for an optimizer. `adam`: it has betas and an epsilon.
struct OptimizerName {
  std::string_view name, type;
  bool adam = true;
};
constexpr auto kOptimizers = std::to_array<OptimizerName>({{"adamw_torch", "AdamW"},
                                                           {"adamw_torch_fused", "AdamW"},
                                                           {"adamw_hf", "AdamW"},
                                                           {"adamw_apex_fused", "AdamW"},
                                                           {"adamw_anyprecision", "AdamW"},
                                                           {"paged_adamw", "AdamW"},
                                                           {"paged_adamw_32bit", "AdamW"},
                                                           {"adamw", "AdamW"},
                                                           {"adamw_bnb_8bit", "AdamW8bit"},
                                                           {"adamw_8bit", "AdamW8bit"},
                                                           {"adamw_torch_8bit", "AdamW8bit"},
                                                           {"adamw_torch_4bit", "AdamW4bit"},
                                                           {"paged_adamw_8bit", "AdamW8bit"},
                                                           {"adafactor", "Adafactor", false},
                                                           {"sgd", "SGD", false},
                                                           {"adagrad", "Adagrad", false},
                                                           {"rmsprop", "RMSprop", false},
                                                           {"lion", "Lion", false},
                                                           {"lion_32bit", "Lion", false},
                                                           {"paged_lion_32bit", "Lion", false},
                                                           {"muon", "Muon", false}});

// The share of all updates that the schedule warms up, or their number.
void set_schedule(Meaning& meaning) {
  const Setting* const type = meaning.find("@schedule");
  if (type == nullptr) return;
  // DeepSpeed's schedule in its file is kept, as the Trainer does.
  const json::Value* const scheduler = meaning.value("scheduler.type");
  const bool of_file =
      scheduler != nullptr && scheduler->is_string() && scheduler->as_string() != "auto";
  if (of_file) return;
  const json::Value* const params = meaning.value("scheduler");
  if (params != nullptr && !params->is_null()) meaning.drop("scheduler");
  meaning.copy("scheduler.type", type);
  if (const Setting* const more = meaning.find("@schedule_params")) {
    if (!more->value.is_object()) {
      meaning.refuse(fmt::format("{}: expected an object", more->flag), "'{\"num_cycles\": 3}'");
      return;
    }
    for (const auto& [key, value] : more->value.members())
      meaning.set("scheduler." + key, value, more);
  }
  if (meaning.text("@schedule") == "constant") return;
  const Setting* steps = meaning.find("@hf_warmup_steps");
  const Setting* const ratio = meaning.find("@hf_warmup_ratio");
  const double count = steps == nullptr ? 0.0 : steps->value.as_double();
  if (count <= 0.0 && ratio != nullptr) steps = ratio;
  if (steps == nullptr || steps->value.as_double() <= 0.0) return;
  const double warmup = steps->value.as_double();
  if (warmup >= 1.0) {
    meaning.set("scheduler.num_warmup_steps",
                json::Value::integer(static_cast<std::int64_t>(warmup)),
                steps);
  } else {
    meaning.set("scheduler.warmup_ratio", json::Value::number(warmup), steps);
  }
}

void set_length(Meaning& meaning) {
  const Setting* const epochs = meaning.find("@epochs");
  const Setting* const steps = meaning.find("trainer.max_steps");
  if (steps != nullptr && steps->value.as_double() > 0) {
    meaning.drop("trainer.epochs");
  } else {
    meaning.copy("trainer.epochs", epochs);
  }
}

void set_precision(Meaning& meaning) {
  const bool fp16 = meaning.is_on("@fp16"), bf16 = meaning.is_on("@bf16");
  const Setting* const half = meaning.given("@fp16");
  if (fp16 && meaning.given("@bf16") != nullptr && bf16) {
    meaning.refuse("--fp16 and --bf16 at once", "keep one of them");
    return;
  }
  if (fp16) {
    // torch's GradScaler, which the Trainer uses.
    meaning.set("fp16.enabled", json::Value::boolean(true), half);
    if (meaning.flags.config.empty()) {
      meaning.set("fp16.scaler", json::Value::string("megatron"), half);
      meaning.set("fp16.initial_scale_power", json::Value::integer(16), half);
      meaning.set("fp16.growth_interval", json::Value::integer(2000), half);
      meaning.set("fp16.hysteresis", json::Value::integer(1), half);
    }
  } else if (bf16) {
    meaning.set("bf16.enabled", json::Value::boolean(true), meaning.find("@bf16"));
  }
}

bool has_validation(const Meaning& meaning) {
  if (meaning.value("data.validation") != nullptr) return true;
  const json::Value* const fraction = meaning.value("data.validation_fraction");
  return fraction != nullptr && fraction->is_number() && fraction->as_double() > 0;
}

void set_evaluation(Meaning& meaning) {
  const Setting* const strategy = meaning.find("@eval_strategy");
  std::string word = strategy == nullptr ? "no" : text::lower(strategy->value.as_string());
  if (meaning.is_on("@eval_during")) word = "steps";
  if (word == "steps") {
    const Setting* steps = meaning.find("@eval_steps");
    if (steps == nullptr) steps = meaning.find("@log_steps");
    if (steps != nullptr) set_interval(meaning, "eval.every", *steps);
  } else if (word == "epoch") {
    meaning.set("eval.every", json::Value::string("epoch"), strategy);
  } else if (word != "no") {
    meaning.refuse(fmt::format("{} {}: unknown", strategy->flag, word), "use no, steps or epoch");
  } else if (meaning.is_on("@do_eval") && has_validation(meaning)) {
    meaning.set("eval.every", json::Value::integer(kAtTheEnd), meaning.find("@do_eval"));
  }
  const bool evaluates = meaning.value("eval.every") != nullptr;
  if (!evaluates) config::drop_evaluation(meaning.source);
}

void set_saving(Meaning& meaning) {
  const Setting* const strategy = meaning.find("@save_strategy");
  const std::string word = strategy == nullptr ? "steps" : text::lower(strategy->value.as_string());
  const Setting* const steps = meaning.find("@save_steps");
  const bool never = steps != nullptr && steps->value.as_double() <= 0;
  if (word == "steps" && !never) {
    if (steps != nullptr) set_interval(meaning, "checkpoint.every", *steps);
  } else if (word == "epoch") {
    meaning.set("checkpoint.every", json::Value::string("epoch"), strategy);
  } else if (word == "no" || word == "best" || never) {
    meaning.set("checkpoint.every", json::Value::integer(0), never ? steps : strategy);
    if (word == "best") meaning.set("checkpoint.best", json::Value::boolean(true), strategy);
  } else {
    meaning.refuse(fmt::format("{} {}: unknown", strategy->flag, word),
                   "use no, steps, epoch or best");
  }
  if (const Setting* const limit = meaning.find("@save_limit")) {
    if (limit->value.as_double() >= 1) meaning.copy("checkpoint.keep", limit);
  }
}

void set_printing(Meaning& meaning) {
  const Setting* const steps = meaning.find("@log_steps");
  if (steps == nullptr) return;
  const double count = steps->value.as_double();
  if (count >= 1)
    meaning.set("steps_per_print", json::Value::integer(static_cast<std::int64_t>(count)), steps);
}

void set_smoothing_and_noise(Meaning& meaning) {
  const json::Value* const task = meaning.value("task.type");
  const std::string name = task != nullptr && task->is_string() ? task->as_string() : "pretrain";
  const Setting* const smoothing = meaning.find("@label_smoothing");
  if (smoothing != nullptr && smoothing->value.as_double() != 0) {
    const bool classes = name == "classify" || name == "tag" || name == "image_classify";
    meaning.copy(classes ? "task.params.label_smoothing" : "model.label_smoothing", smoothing);
  }
  const Setting* const noise = meaning.given("@neftune");
  if (noise == nullptr || noise->value.as_double() == 0) return;
  if (name == "sft") {
    meaning.copy("task.params.neftune_alpha", noise);
  } else {
    meaning.refuse(
        fmt::format("{}: only supervised fine-tuning adds noise to embeddings", noise->flag),
        "remove it");
  }
}

void set_best(Meaning& meaning) {
  // Without evaluations, the key itself has been removed.
  const Setting* const best = meaning.given("checkpoint.best");
  if (best != nullptr && best->value.is_bool() && best->value.as_bool() &&
      meaning.value("eval.every") == nullptr) {
    meaning.refuse("--load_best_model_at_end without evaluations",
                   "add --eval_strategy steps or epoch");
  }
}

}  // namespace

void set_interval(Meaning& meaning, std::string_view key, const Setting& steps) {
  const double count = steps.value.as_double();
  meaning.set(key,
              count >= 1 ? json::Value::integer(static_cast<std::int64_t>(count))
                         : json::Value::number(count),
              &steps);
}

void set_optimizer(Meaning& meaning, const Setting& name) {
  const std::string word = text::lower(name.value.as_string());
  const auto* const found = std::find_if(
      kOptimizers.begin(), kOptimizers.end(), [&](const auto& one) { return one.name == word; });
  if (found == kOptimizers.end()) {
    std::vector<std::string> names;
    for (const OptimizerName& one : kOptimizers)
      names.emplace_back(one.name);
    meaning.refuse(fmt::format("{} {}: there is no such optimizer here", name.flag, word),
                   text::suggestion(word, names));
    return;
  }
  meaning.set("optimizer.type", json::Value::string(std::string(found->type)), &name);
  const Setting *const one = meaning.find("@beta1"), *const two = meaning.find("@beta2");
  const bool betas = found->adam || found->type == "Lion";
  if (betas && one != nullptr && two != nullptr) {
    meaning.set("optimizer.betas",
                json::Value::array({one->value, two->value}),
                meaning.given("@beta1") != nullptr ? one : two);
  }
  if (found->adam) meaning.copy("optimizer.eps", meaning.find("@epsilon"));
  if (found->type == "Adafactor") {
    meaning.set("optimizer.scale_parameter", json::Value::boolean(false), &name);
    meaning.set("optimizer.relative_step", json::Value::boolean(false), &name);
  }
}

bool has_field(const Meaning& meaning, const std::string& field) {
  struct Read {};
  const json::Value* const train = meaning.value("data.train");
  if (train == nullptr) return false;
  std::vector<std::string> names;
  if (train->is_string()) names.push_back(train->as_string());
  if (train->is_array() && !train->items().empty() && train->items().front().is_string())
    names.push_back(train->items().front().as_string());
  bool found = false;
  try {
    std::vector<std::string> files = data::record_files(names, data::Split::Train);
    files.resize(std::min<std::size_t>(files.size(), 1));
    data::for_each_record(files, {}, [&](const data::Record& record) {
      found = record.value.find(field) != nullptr;
      throw Read{};
    });
  } catch (const Read&) {
    return found;
  } catch (const Error&) {
    // The training reports what is wrong with the data.
  }
  return found;
}

void set_overrides(Meaning& meaning) {
  const Setting* const overrides = meaning.given("@config_overrides");
  if (overrides == nullptr) return;
  static constexpr auto kNames = std::to_array<std::pair<std::string_view, std::string_view>>(
      {{"n_embd", "model.hidden_size"},
       {"hidden_size", "model.hidden_size"},
       {"n_head", "model.num_heads"},
       {"num_attention_heads", "model.num_heads"},
       {"n_layer", "model.num_layers"},
       {"num_hidden_layers", "model.num_layers"},
       {"n_positions", "model.max_positions"},
       {"max_position_embeddings", "model.max_positions"},
       {"n_inner", "model.ffn_hidden_size"},
       {"intermediate_size", "model.ffn_hidden_size"},
       {"num_key_value_heads", "model.num_kv_heads"},
       {"vocab_size", "model.vocab_size"},
       {"resid_pdrop", "model.residual_dropout"},
       {"embd_pdrop", "model.embedding_dropout"},
       {"attn_pdrop", "model.attention_dropout"},
       {"initializer_range", "model.init_std"}});
  for (const std::string& part : text::split(overrides->value.as_string(), ',')) {
    const std::size_t equals = part.find('=');
    const std::string name(text::trim(part.substr(0, equals)));
    const auto* const found = std::find_if(
        kNames.begin(), kNames.end(), [&](const auto& one) { return one.first == name; });
    if (equals == std::string::npos || found == kNames.end()) {
      meaning.refuse(fmt::format("{} {}: unknown", overrides->flag, part),
                     "give it with --set model.KEY=VALUE");
      continue;
    }
    meaning.set(found->second, json::parse(part.substr(equals + 1), overrides->flag), overrides);
  }
}

void set_tokenizer(Meaning& meaning, const Setting& name) {
  namespace fs = std::filesystem;
  const json::Value* const from = meaning.value("model.from");
  if (from != nullptr && from->is_string() && from->as_string() == name.value.as_string()) return;
  const fs::path folder = hub::model_path(name.value.as_string());
  std::error_code ignored;
  for (const char* file : {"tokenizer.json", "vocab.txt", "tokenizer.model", "spiece.model"}) {
    if (!fs::exists(folder / file, ignored)) continue;
    meaning.set("tokenizer.type", json::Value::string("file"), &name);
    meaning.set("tokenizer.vocab", json::Value::string((folder / file).string()), &name);
    return;
  }
  // The tokenizer of GPT-2 is a part of tessera.
  const std::string& word = name.value.as_string();
  for (const char* known : {"gpt2", "openai-community/gpt2"}) {
    if (word != known) continue;
    meaning.set("tokenizer.type", json::Value::string("gpt2"), &name);
    return;
  }
  meaning.refuse(fmt::format("{} {}: there is no tokenizer of that name on this machine",
                             name.flag,
                             name.value.as_string()),
                 hub::how_to_fetch(name.value.as_string()));
}

void use_model(Meaning& meaning, const Setting* name) {
  if (name == nullptr) return;
  const std::string& text = name->value.as_string();
  std::error_code ignored;
  if (!std::filesystem::exists(text, ignored) && !hub::find_model(text)) {
    meaning.refuse(fmt::format("{} {}: there is no such model on this machine", name->flag, text),
                   hub::how_to_fetch(text));
    return;
  }
  meaning.copy("model.from", name);
}

void use_dataset(Meaning& meaning,
                 const Setting& name,
                 const std::string& config,
                 const Splits& splits) {
  const std::string& text = name.value.as_string();
  const auto found = find_dataset(text, config);
  if (!found) {
    meaning.refuse(fmt::format("{} {}{}{}: there is no such data set on this machine",
                               name.flag,
                               text,
                               config.empty() ? "" : " ",
                               config),
                   how_to_fetch_dataset(text));
    return;
  }
  const auto set = [&](const char* key, const std::string& split, bool required) {
    if (split.empty() || meaning.value(key) != nullptr) return;
    const std::vector<std::string> files = split_files(*found, split);
    if (files.empty()) {
      if (required) {
        meaning.refuse(fmt::format("{} has no part \"{}\"", found->string(), split),
                       "name a part that it has");
      }
      return;
    }
    meaning.set(key, names_value(files), &name);
  };
  set("data.train", splits.train, true);
  set("data.validation", splits.validation, false);
  set("data.test", splits.test, false);
}

void limit_records(Meaning& meaning, std::string_view key, const Setting& most) {
  const json::Value* const value = meaning.value(key);
  if (value == nullptr) return;
  std::vector<std::string> names;
  if (value->is_string()) names.push_back(value->as_string());
  if (value->is_array()) {
    for (const json::Value& item : value->items())
      names.push_back(item.as_string());
  }
  if (names.empty()) return;
  if (!most.value.is_number() || most.value.as_double() < 1) {
    meaning.refuse(fmt::format("{}: expected a number of records", most.flag), "give 1 or more");
    return;
  }
  const data::Split part = key == "data.train"        ? data::Split::Train
                           : key == "data.validation" ? data::Split::Validation
                                                      : data::Split::Test;
  if (names.size() > 1 || data::cut_slice(names.front()).slice)
    names = data::record_files(names, part);
  const data::Slice slice{.begin = std::nullopt,
                          .end = static_cast<std::int64_t>(most.value.as_double())};
  meaning.set(key, names_value(data::slice_files(names, slice)), &most);
}

void apply_trainer(Meaning& meaning) {
  if (!meaning.flags.config.empty() && meaning.given("zero_optimization.stage") != nullptr &&
      meaning.given("zero_optimization.stage")->flag.find("fsdp") != std::string::npos)
    meaning.refuse("FSDP and DeepSpeed at once", "keep --fsdp or --deepspeed");
  const json::Value* const optimizer = meaning.value("optimizer.type");
  const bool of_file = optimizer != nullptr && optimizer->is_string();
  if (meaning.is_on("@adafactor")) {
    Setting adafactor = *meaning.find("@adafactor");
    adafactor.value = json::Value::string("adafactor");
    set_optimizer(meaning, adafactor);
  } else if (const Setting* const name = meaning.find("@optim"); name != nullptr && !of_file) {
    set_optimizer(meaning, *name);
  }
  if (const Setting* const args = meaning.given("@optim_args"))
    meaning.refuse(fmt::format("{} is not supported", args->flag),
                   "set optimizer.params with --set");
  set_schedule(meaning);
  set_length(meaning);
  set_precision(meaning);
  set_smoothing_and_noise(meaning);
  set_evaluation(meaning);
  set_saving(meaning);
  set_printing(meaning);
  set_best(meaning);
  const std::string order = meaning.text("@sampling", "random");
  if (order == "sequential") {
    meaning.set("data.shuffle", json::Value::boolean(false), meaning.find("@sampling"));
  } else if (order != "random") {
    meaning.refuse(fmt::format("{} {} is not supported", meaning.find("@sampling")->flag, order),
                   "use random or sequential");
  }
  if (const Setting* const from = meaning.given("@resume")) {
    const std::string word = meaning.text("@resume");
    if (word != "true" && word != "True" && word != "false" && word != "False")
      meaning.own_words.insert(meaning.own_words.end(), {"--resume", from->value.as_string()});
  }
}

}  // namespace tessera::interop::huggingface

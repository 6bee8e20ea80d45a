// SPDX-License-Identifier: Apache-2.0
// LLaMA-Factory's `llamafactory-cli train FILE.yaml`: its stages, adapters, and data sets by the
// names of dataset_info.json.
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/data/records.h"
#include "tessera/data/slices.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/dataset_names.h"
#include "tessera/interop/huggingface/trainer_rules.h"
#include "tessera/interop/option_table.h"
#include "tessera/interop/peft/command_rules.h"
#include "tessera/interop/yaml.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using Setting = ForeignFlags::Setting;

constexpr std::string_view kRows =
#include "tessera/interop/llamafactory/options.inc"
    ;
const bool kTables = add_option_tables("llamafactory", kRows);

/// A data set of dataset_info.json.
struct Source {
  std::vector<std::string> files;
  std::string format;  ///< alpaca or sharegpt
  json::Value map;     ///< the tasks' field names and those of the file
};

std::string text_in(const json::Value& object, const char* key) {
  const json::Value* const value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

// The names of columns that differ from those that the format has.
json::Value map_of(const json::Value& entry, const std::string& format) {
  json::Value out = json::Value::object();
  const json::Value* const columns = entry.find("columns");
  if (columns == nullptr || !columns->is_object()) return out;
  const auto add = [&](const char* there, const char* here) {
    const std::string column = text_in(*columns, there);
    if (!column.empty() && column != here) out[here] = json::Value::string(column);
  };
  if (format == "sharegpt") {
    add("messages", "conversations");
  } else {
    add("prompt", "instruction");
    add("query", "input");
    add("response", "output");
  }
  add("system", "system");
  add("history", "history");
  add("chosen", "chosen");
  add("rejected", "rejected");
  add("kto_tag", "label");
  return out;
}

// Tags of OpenAI's messages, which LLaMA-Factory's own examples use.
bool has_openai_tags(const json::Value& entry) {
  const json::Value* const tags = entry.find("tags");
  return tags != nullptr && tags->is_object() && text_in(*tags, "role_tag") == "role" &&
         text_in(*tags, "content_tag") == "content";
}

Source source_of(Meaning& meaning,
                 const Setting& from,
                 const std::string& name,
                 const json::Value& info,
                 const std::string& folder) {
  Source out;
  const json::Value* const entry = info.is_object() ? info.find(name) : nullptr;
  if (entry == nullptr || !entry->is_object()) {
    std::vector<std::string> names;
    if (info.is_object()) {
      for (const auto& [known, value] : info.members())
        names.push_back(known);
    }
    meaning.refuse(
        fmt::format("{} {}: dataset_info.json in {} has no such data set", from.flag, name, folder),
        text::suggestion(name, names));
    return out;
  }
  out.format = text_in(*entry, "formatting").empty() ? "alpaca" : text_in(*entry, "formatting");
  out.map = map_of(*entry, out.format);
  if (has_openai_tags(*entry)) {
    const json::Value* const columns = entry->find("columns");
    const std::string messages = columns == nullptr ? "" : text_in(*columns, "messages");
    out.map = json::Value::object();
    if (!messages.empty() && messages != "messages")
      out.map["messages"] = json::Value::string(messages);
    const std::string label = columns == nullptr ? "" : text_in(*columns, "kto_tag");
    if (!label.empty() && label != "label") out.map["label"] = json::Value::string(label);
    out.format = "messages";
  }
  const std::string file = text_in(*entry, "file_name");
  const std::string hub = text_in(*entry, "hf_hub_url");
  if (!file.empty()) {
    out.files = {(fs::path(folder) / file).string()};
  } else {
    const auto found = find_dataset(hub, text_in(*entry, "subset"));
    const std::string split = text_in(*entry, "split").empty() ? "train" : text_in(*entry, "split");
    if (!found) {
      meaning.refuse(
          fmt::format("{} {}: there is no data set {} on this machine", from.flag, name, hub),
          how_to_fetch_dataset(hub));
      return out;
    }
    out.files = split_files(*found, split);
    if (out.files.empty())
      meaning.refuse(
          fmt::format("{} {}: {} has no part \"{}\"", from.flag, name, found->string(), split),
          "name a part that it has: split, in dataset_info.json");
  }
  if (entry->find("num_samples") != nullptr)
    meaning.refuse(fmt::format("{} {}: num_samples draws records at random", from.flag, name),
                   "use max_samples, which takes the first ones");
  return out;
}

// The first max_samples records of a data set.
void limit_source(Meaning& meaning, std::vector<std::string>& files) {
  const Setting* const most = meaning.given("@max_samples");
  if (most == nullptr || files.empty()) return;
  if (!most->value.is_number() || most->value.as_double() < 1) {
    meaning.refuse(fmt::format("{}: expected a number of records", most->flag),
                   "max_samples: 1000");
    return;
  }
  std::error_code ignored;
  const data::SlicedName first = data::cut_slice(files.front());
  if (!fs::exists(first.name, ignored)) return;  // the training says that it is missing
  if (files.size() > 1 || first.slice) files = data::record_files(files, data::Split::Train);
  files = data::slice_files(
      files, {.begin = std::nullopt, .end = static_cast<std::int64_t>(most->value.as_double())});
}

void set_data(Meaning& meaning, const char* key, const Setting& from) {
  const std::string folder = meaning.text("@dataset_dir", "data");
  const fs::path file = fs::path(folder) / "dataset_info.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    meaning.refuse(
        fmt::format("{}: {} does not exist, which names the data sets", from.flag, file.string()),
        "name its folder: dataset_dir");
    return;
  }
  const json::Value info = read_settings(file.string());
  std::vector<std::string> names;
  Source all;
  bool first = true;
  for (const std::string& name : meaning.texts(from.key)) {
    Source one = source_of(meaning, from, name, info, folder);
    if (one.files.empty()) continue;
    if (!first && (one.format != all.format || !(one.map == all.map))) {
      meaning.refuse(fmt::format("{}: the data sets have different formats or columns", from.flag),
                     "write them into one format");
      return;
    }
    limit_source(meaning, one.files);
    names.insert(names.end(), one.files.begin(), one.files.end());
    all = std::move(one);
    first = false;
  }
  if (names.empty()) return;
  meaning.set(key, names_value(names), &from);
  if (std::string_view(key) != "data.train") return;
  const std::string stage = meaning.text("@stage", "sft");
  if (stage == "sft") meaning.set("data.format", json::Value::string(all.format), &from);
  if (!all.map.members().empty()) meaning.set("data.map", all.map, &from);
}

// Losses that weigh the tokens (train/trainer_utils.py).
void set_token_weights(Meaning& meaning) {
  const Setting* from = nullptr;
  for (const char* const name : {"@dft", "@asft", "@eaft"}) {
    if (!meaning.is_on(name)) continue;
    if (from != nullptr)
      meaning.refuse(fmt::format("{} and {} at once", from->flag, meaning.find(name)->flag),
                     "keep one of them");
    from = meaning.find(name);
  }
  if (from == nullptr) return;
  const bool entropy = meaning.is_on("@eaft");
  meaning.set(
      "task.params.token_weights", json::Value::string(entropy ? "entropy" : "probability"), from);
  if (entropy) meaning.copy("task.params.token_weight_params.alpha", meaning.find("@eaft_alpha"));
  if (!meaning.is_on("@asft")) return;
  // The divergence of the model from where it began.
  meaning.copy("distill.teacher", meaning.given("@model"));
  meaning.set("distill.temperature", json::Value::integer(1), from);
  meaning.copy("distill.alpha", meaning.find("@asft_alpha"));
  meaning.set("distill.label_weight", json::Value::integer(1), from);
}

// config.json of the model's folder; an object without members: it cannot be read, and the training
// says why.
json::Value config_of_model(const Meaning& meaning) {
  try {
    const fs::path file = hub::model_path(meaning.text("@model")) / "config.json";
    json::Value config = json::parse_strict(files::read(file), file.string());
    if (config.is_object()) return config;
  } catch (const Error&) {
    // See above.
  }
  return json::Value::object();
}

// Its Muon multiplies the rate of a matrix by 0.2 sqrt(its longer side); all else has AdamW, and
// everything decays. A matrix is a tensor of the published model, most of which have queries, keys
// and values apart.
void set_muon(Meaning& meaning) {
  if (!meaning.is_on("@muon")) return;
  const Setting* const from = meaning.find("@muon");
  const json::Value config = config_of_model(meaning);
  const json::Value* const type = config.find("model_type");
  constexpr std::array<std::string_view, 5> kFused = {"gpt2", "gpt_neox", "bloom", "phi3", "dbrx"};
  const bool fused = type != nullptr && type->is_string() &&
                     std::ranges::find(kFused, type->as_string()) != kFused.end();
  meaning.set("optimizer.type", json::Value::string("Muon"), from);
  meaning.set("optimizer.adjust_lr_fn", json::Value::string("match_rms_adamw"), from);
  meaning.set("optimizer.split_qkv", json::Value::boolean(!fused), from);
  meaning.set("optimizer.decay_all", json::Value::boolean(true), from);
  meaning.note(
      fmt::format("{}: the gate and up projections of an MLP are one matrix here, which is "
                  "orthogonalized as a whole",
                  from->flag));
}

void set_sft(Meaning& meaning) {
  const bool prompt = meaning.is_on("@train_on_prompt"), last = meaning.is_on("@mask_history");
  meaning.set("task.params.loss_on",
              json::Value::string(prompt ? "all"
                                  : last ? "last_assistant"
                                         : "assistant"),
              meaning.find(last ? "@mask_history" : "@train_on_prompt"));
  const bool neat = meaning.is_on("@neat_packing");
  if (meaning.is_on("@packing") && !neat) {
    meaning.refuse(fmt::format("{}: texts that share a sample do not attend to each other here",
                               meaning.find("@packing")->flag),
                   "neat_packing: true");
  }
  meaning.set("data.pack", json::Value::boolean(neat), meaning.find("@neat_packing"));
  set_token_weights(meaning);
}

void set_pretraining(Meaning& meaning) {
  const Setting* const packing = meaning.given("@packing");
  if (packing != nullptr && !meaning.is_on("@packing"))
    meaning.set("data.pack", json::Value::boolean(false), packing);
  const json::Value* const map = meaning.value("data.map");
  const json::Value* const field = map == nullptr ? nullptr : map->find("instruction");
  const std::string text = field != nullptr ? field->as_string() : "text";
  meaning.drop("data.map");
  meaning.set("data.text_field", json::Value::string(text), meaning.find("@dataset"));
}

void set_preference(Meaning& meaning) {
  const std::string loss = meaning.text("@pref_loss", "sigmoid");
  const Setting* const from = meaning.find("@pref_loss");
  const bool free = loss == "orpo" || loss == "simpo";
  if (loss != "sigmoid" && loss != "hinge" && loss != "ipo" && !free) {
    meaning.refuse(fmt::format("{} {} is not supported", from->flag, loss),
                   "use sigmoid, hinge, ipo, orpo or simpo");
    return;
  }
  meaning.set("task.params.method", json::Value::string(free ? loss : "dpo"), from);
  if (!free) meaning.set("task.params.loss.type", json::Value::string(loss), from);
  meaning.copy("task.params.loss.beta", meaning.find("@pref_beta"));
  if (loss == "simpo") meaning.copy("task.params.loss.gamma", meaning.find("@simpo_gamma"));
  if (!free) meaning.copy("task.params.loss.label_smoothing", meaning.find("@pref_smoothing"));
  const Setting* const supervised = meaning.given("@pref_ftx");
  if (supervised != nullptr && supervised->value.as_double() > 0 && !free) {
    meaning.set("task.params.loss.type",
                json::Value::array({json::Value::string(loss), json::Value::string("sft")}),
                supervised);
    meaning.set("task.params.loss.weights",
                json::Value::array({json::Value::integer(1), supervised->value}),
                supervised);
  }
}

void set_kto(Meaning& meaning) {
  meaning.set("task.params.method", json::Value::string("kto"), meaning.find("@stage"));
  meaning.copy("task.params.loss.beta", meaning.find("@pref_beta"));
  meaning.copy("task.params.loss.desirable_weight", meaning.find("@kto_chosen"));
  meaning.copy("task.params.loss.undesirable_weight", meaning.find("@kto_rejected"));
}

void set_ppo(Meaning& meaning) {
  const Setting* const reward = meaning.given("@reward_model");
  if (reward == nullptr) {
    meaning.refuse("stage ppo without a reward model", "name it: reward_model");
    return;
  }
  meaning.set("rl.algorithm", json::Value::string("ppo"), meaning.find("@stage"));
  meaning.set("rl.rewards",
              json::Value::array({json::Value::object(
                  {{"type", json::Value::string("model")}, {"from", reward->value}})}),
              reward);
  meaning.copy("rl.iterations", meaning.find("@ppo_epochs"));
  meaning.copy("rl.max_new_tokens", meaning.find("@max_new_tokens"));
}

void set_stage(Meaning& meaning) {
  const std::string stage = meaning.text("@stage", "sft");
  const Setting* const from = meaning.find("@stage");
  struct Named {
    std::string_view stage, task;
    void (*set)(Meaning&);
  };
  static constexpr Named kStages[] = {{"sft", "sft", set_sft},
                                      {"pt", "pretrain", set_pretraining},
                                      {"rm", "reward", nullptr},
                                      {"dpo", "prefer", set_preference},
                                      {"kto", "prefer", set_kto},
                                      {"ppo", "rl", set_ppo}};
  for (const auto& [name, task, set] : kStages) {
    if (name != stage) continue;
    meaning.set("task.type", json::Value::string(std::string(task)), from);
    if (set != nullptr) set(meaning);
    return;
  }
  meaning.refuse(fmt::format("{} {}: there is no such stage", from->flag, stage),
                 "use pt, sft, rm, dpo, kto or ppo");
}

// The number of layers in config.json of the model's folder; 0: unknown.
std::int64_t layers_of_model(const Meaning& meaning) {
  const json::Value config = config_of_model(meaning);
  for (const char* const key : {"num_hidden_layers", "num_layers", "n_layer"}) {
    const json::Value* const count = config.find(key);
    if (count != nullptr && count->is_number()) return count->as_integer().value_or(0);
  }
  return 0;
}

// The layers that freeze tuning trains: the last ones, or the first ones of a negative number; of
// LLaMA Pro those behind each part of equal size.
std::vector<std::int64_t> trained_layers(Meaning& meaning) {
  std::vector<std::int64_t> out;
  const std::int64_t all = layers_of_model(meaning);
  const Setting* const from = meaning.find("@freeze_layers");
  const auto count = static_cast<std::int64_t>(meaning.number("@freeze_layers").value_or(2));
  if (meaning.is_on("@llama_pro")) {
    if (count < 1 || all < count || all % count != 0) {
      meaning.refuse(
          fmt::format("{} {} does not divide the {} layers of the model", from->flag, count, all),
          "choose a divisor of their number");
      return out;
    }
    for (std::int64_t layer = all / count - 1; layer < all; layer += all / count)
      out.push_back(layer);
    return out;
  }
  const std::int64_t begin = count > 0 ? std::max<std::int64_t>(0, all - count) : 0,
                     end = count > 0 ? all : std::min(-count, all);
  for (std::int64_t layer = begin; layer < end; ++layer)
    out.push_back(layer);
  return out;
}

// Freeze tuning: whole layers, or some of their modules, and modules outside of layers.
void set_freeze(Meaning& meaning) {
  std::vector<std::string> numbers;
  for (const std::int64_t layer : trained_layers(meaning))
    numbers.push_back(std::to_string(layer));
  if (numbers.empty()) {
    meaning.refuse(
        fmt::format("{}: no layer would be trained, or config.json of the model does not "
                    "say how many there are",
                    meaning.find("@freeze_layers")->flag),
        "name the folder of a model, and a number of layers other than 0");
    return;
  }
  json::Value patterns = json::Value::array();
  for (const std::string& module : meaning.texts("@freeze_modules")) {
    patterns.push_back(json::Value::string(fmt::format(
        "\\.({})\\.{}", text::join(numbers, "|"), module == "all" ? std::string() : module)));
  }
  for (const std::string& module : meaning.texts("@freeze_extra"))
    patterns.push_back(json::Value::string(module));
  meaning.set("optimizer.trained", std::move(patterns), meaning.find("@freeze_layers"));
}

void set_weights(Meaning& meaning) {
  const std::string type = meaning.text("@finetuning", "lora");
  const Setting* const from = meaning.find("@finetuning");
  const Setting* const bits = meaning.given("@quantization_bit");
  if (bits != nullptr) {
    const double count = bits->value.as_double();
    if (count != 4 && count != 8)
      meaning.refuse(fmt::format("{} {} is not supported", bits->flag, count), "use 4 or 8");
    meaning.flags.settings.push_back(
        {bits->flag, count == 4 ? "@nf4" : "@int8", json::Value::boolean(true)});
  }
  if (type == "lora") {
    peft::set_adapter(meaning, {.from = meaning.find("@finetuning")});
    if (meaning.find("@lora_alpha") == nullptr) {
      const double rank = meaning.number("@lora_r").value_or(8);
      meaning.set("adapter.alpha", json::Value::number(2 * rank), meaning.find("@lora_r"));
    }
    meaning.copy("adapter.from", meaning.given("@adapter_from"));
    // KTransformers adapts the routed experts too; where it computes them changes no result.
    if (meaning.is_on("@kt") && meaning.text("@lora_targets") == "all")
      meaning.set(
          "adapter.targets", json::Value::string(".*_proj(_with_mqa)?"), meaning.given("@kt"));
    if (meaning.is_on("@llama_pro") && meaning.value("adapter.targets") != nullptr &&
        meaning.value("adapter.targets")->is_string()) {
      meaning.refuse(fmt::format("{} with use_kt and lora_target all is not supported",
                                 meaning.given("@llama_pro")->flag),
                     "name the layers in lora_target, such as q_proj,v_proj");
    } else if (meaning.is_on("@llama_pro")) {
      json::Value layers = json::Value::array();
      for (const std::int64_t layer : trained_layers(meaning))
        layers.push_back(json::Value::integer(layer));
      meaning.set("adapter.layers", std::move(layers), meaning.given("@llama_pro"));
    }
  } else if (type == "freeze") {
    set_freeze(meaning);
  } else if (type != "full") {
    meaning.refuse(fmt::format("{} {} is not supported", from->flag, type),
                   "use lora, freeze or full");
  }
}

void train(Meaning& meaning) {
  if (!meaning.is_on("@do_train"))
    meaning.refuse(fmt::format("{} without do_train trains nothing", meaning.program),
                   "do_train: true");
  huggingface::use_model(meaning, meaning.given("@model"));
  if (meaning.given("@model") == nullptr)
    meaning.refuse(fmt::format("{} without a model", meaning.program),
                   "name it: model_name_or_path");
  if (const Setting* const data = meaning.given("@dataset")) {
    const Setting copy = *data;
    set_data(meaning, "data.train", copy);
  } else {
    meaning.refuse(fmt::format("{} without data", meaning.program), "name it: dataset");
  }
  if (const Setting* const held_out = meaning.given("@eval_dataset")) {
    const Setting copy = *held_out;
    set_data(meaning, "data.validation", copy);
  }
  const Setting* const size = meaning.given("@val_size");
  if (size != nullptr && size->value.as_double() > 0) {
    if (size->value.as_double() >= 1)
      meaning.refuse(fmt::format("{}: expected a share below 1", size->flag), "val_size: 0.1");
    meaning.copy("data.validation_fraction", size);
  }
  set_stage(meaning);
  set_weights(meaning);
  huggingface::apply_trainer(meaning);
  set_muon(meaning);
  // Gradient checkpointing is on unless it is disabled.
  meaning.set("activation_checkpointing.enabled",
              json::Value::boolean(!meaning.is_on("@no_recompute")),
              meaning.find("@no_recompute"));
  if (meaning.is_on("@no_shuffle"))
    meaning.set("data.shuffle", json::Value::boolean(false), meaning.find("@no_shuffle"));
  if (meaning.is_on("@pure_bf16")) {
    const Setting* const pure = meaning.find("@pure_bf16");
    meaning.set("bf16.enabled", json::Value::boolean(true), pure);
    if (meaning.text("@finetuning", "lora") != "lora") {
      meaning.set("bf16.bf16_master_weights_and_grads", json::Value::boolean(true), pure);
      meaning.set("bf16.bf16_optimizer_states", json::Value::boolean(true), pure);
    }
  }
  if (const Setting* const name = meaning.given("@template"))
    meaning.note(fmt::format("{} {}: the chat template of the model's folder is used",
                             name->flag,
                             name->value.as_string()));
}

const bool kPrograms = add_programs({
    {.title = "LLaMA-Factory's train",
     .names = {"llamafactory-cli train", "llamafactory-cli sft"},
     .tables = {"llamafactory/train", "huggingface/seq2seq", "huggingface/trainer"},
     .always = R"({"data": {"drop_last": false}, "eval": {"batches": 1000000000}})",
     .rules = train,
     .file = "-"},
    {.title = "LLaMA-Factory's train.py",
     .names = {"train.py", "train_bash.py"},
     .folders = {"LLaMA-Factory", "llamafactory", "src/train"},
     .marks = {"finetuning_type", "cutoff_len", "lora_target", "dataset_dir"},
     .tables = {"llamafactory/train", "huggingface/seq2seq", "huggingface/trainer"},
     .always = R"({"data": {"drop_last": false}, "eval": {"batches": 1000000000}})",
     .rules = train,
     .file = "-"},
    {.title = "LLaMA-Factory's export",
     .names = {"llamafactory-cli export"},
     .tables = {"llamafactory/train"},
     .refused = "a merged model is written by another command",
     .instead = "tessera adapter merge RUN OUT"},
    {.title = "LLaMA-Factory's chat",
     .names = {"llamafactory-cli chat",
               "llamafactory-cli api",
               "llamafactory-cli webchat",
               "llamafactory-cli webui",
               "llamafactory-cli eval"},
     .tables = {"llamafactory/train"},
     .refused = "it trains nothing",
     .instead = "tessera chat MODEL, or tessera eval MODEL --data FILE"},
});

}  // namespace
}  // namespace tessera::interop

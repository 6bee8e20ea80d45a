// SPDX-License-Identifier: Apache-2.0
// TRL's commands and scripts: supervised fine-tuning, preferences, reward models, policies.
#include <array>
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
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/dataset_names.h"
#include "tessera/interop/huggingface/trainer_rules.h"
#include "tessera/interop/option_table.h"
#include "tessera/interop/peft/command_rules.h"

namespace tessera::interop {
namespace {

using Setting = ForeignFlags::Setting;

constexpr std::string_view kRows =
#include "tessera/interop/trl/options.inc"
    ;
const bool kTables = add_option_tables("trl", kRows);

void set_adapter(Meaning& meaning) {
  if (!meaning.is_on("@peft")) {
    for (const char* name : {"@nf4", "@int8"}) {
      if (meaning.is_on(name))
        meaning.refuse(fmt::format("{} without an adapter", meaning.find(name)->flag),
                       "add --use_peft");
    }
    return;
  }
  peft::set_adapter(meaning, {.from = meaning.find("@peft"), .default_targets = true});
}

// The data sets of a file of TRL, one behind the other: path, name, split, and columns that are all
// there are.
void set_mixture(Meaning& meaning, const Setting& many) {
  std::vector<std::string> files;
  const bool list = many.value.is_array() && !many.value.items().empty();
  for (const json::Value& entry : list ? many.value.items() : std::vector<json::Value>()) {
    const auto text = [&](const char* key) {
      const json::Value* const value = entry.is_object() ? entry.find(key) : nullptr;
      return value != nullptr && value->is_string() ? value->as_string() : std::string();
    };
    const std::string path = text("path");
    if (entry.is_object()) {
      for (const auto& [key, value] : entry.members()) {
        const bool known = key == "path" || key == "name" || key == "split" || key == "columns";
        if (!known && !value.is_null())
          meaning.refuse(fmt::format("{}: {} is not supported", value.key_place.text(), key),
                         "name the folder or the file of the data set: path");
      }
    }
    const auto found = find_dataset(path, text("name"));
    if (!found) {
      meaning.refuse(fmt::format("{} {}: there is no such data set on this machine",
                                 many.flag,
                                 path.empty() ? "without a path" : path),
                     how_to_fetch_dataset(path));
      continue;
    }
    const std::string split = text("split").empty() ? "train" : text("split");
    const std::vector<std::string> some = split_files(*found, split);
    if (some.empty())
      meaning.refuse(fmt::format("{} has no part \"{}\"", found->string(), split),
                     "name a part that it has");
    files.insert(files.end(), some.begin(), some.end());
  }
  if (!list)
    meaning.refuse(fmt::format("{}: expected a list of data sets with paths", many.flag),
                   "- path: FOLDER");
  if (!files.empty()) meaning.set("data.train", names_value(files), &many);
}

void set_data(Meaning& meaning) {
  const Setting* const name = meaning.given("@dataset");
  const Setting* const many = meaning.given("@datasets");
  if (many != nullptr && name == nullptr) {
    const Setting copy = *many;
    set_mixture(meaning, copy);
    return;
  }
  if (name == nullptr) {
    meaning.refuse(fmt::format("{} without data", meaning.program), "add --dataset_name");
    return;
  }
  const bool evaluates = text::lower(meaning.text("@eval_strategy", "no")) != "no";
  huggingface::use_dataset(meaning,
                           *name,
                           meaning.text("@dataset_config"),
                           {.train = meaning.text("@train_split", "train"),
                            .validation = evaluates ? meaning.text("@test_split", "test") : "",
                            .test = ""});
}

// A model that is loaded in 16 bits and trained without an adapter has no other weights.
void set_pure_precision(Meaning& meaning) {
  const Setting* const dtype = meaning.given("@load_dtype");
  if (dtype == nullptr || meaning.is_on("@peft")) return;
  const std::string word = text::lower(meaning.text("@load_dtype"));
  if (word == "bfloat16" || word == "bf16") {
    meaning.set("bf16.enabled", json::Value::boolean(true), dtype);
    meaning.set("bf16.bf16_master_weights_and_grads", json::Value::boolean(true), dtype);
    meaning.set("bf16.bf16_optimizer_states", json::Value::boolean(true), dtype);
  } else if (word == "float16" || word == "fp16") {
    meaning.refuse(fmt::format("{} {}: a training in fp16 needs fp32 weights", dtype->flag, word),
                   "use --dtype float32 --fp16, or bfloat16");
  }
}

// The files of trl/accelerate_configs by their names: they differ in what the ranks divide.
void set_named_layout(Meaning& meaning) {
  const Setting* const file = meaning.given("@accelerate_config");
  if (file == nullptr) return;
  constexpr std::int64_t kRanks = 8;
  const std::string name = meaning.text("@accelerate_config");
  for (const auto& [word, stage, ranks] : {std::tuple("single_gpu", 0, std::int64_t{1}),
                                           std::tuple("multi_gpu", 0, kRanks),
                                           std::tuple("zero1", 1, kRanks),
                                           std::tuple("zero2", 2, kRanks),
                                           std::tuple("zero3", 3, kRanks),
                                           std::tuple("fsdp1", 3, kRanks),
                                           std::tuple("fsdp2", 3, kRanks)}) {
    if (name != word) continue;
    meaning.ranks = ranks;
    if (ranks > 1) meaning.set("zero_optimization.stage", json::Value::integer(stage), file);
    return;
  }
  meaning.refuse(fmt::format("{} {}: give the file to accelerate", file->flag, name),
                 "tessera accelerate launch --config_file FILE ...");
}

void finish(Meaning& meaning) {
  huggingface::use_model(meaning, meaning.find("@model"));
  if (meaning.find("@model") == nullptr)
    meaning.refuse(fmt::format("{} without a model", meaning.program), "add --model_name_or_path");
  set_data(meaning);
  set_adapter(meaning);
  // TRL trains in bf16 unless fp16 is asked for.
  huggingface::apply_trainer(meaning);
  set_pure_precision(meaning);
  set_named_layout(meaning);
  if (const Setting* const ranks = meaning.given("@ranks"))
    meaning.ranks = ranks->value.as_integer();
}

// Returns whether the chat template of the model's folder, or the one that the command names,
// writes the tokenizer's end of text.
bool template_has_end_token(const Meaning& meaning) {
  namespace fs = std::filesystem;
  try {
    const Setting* const named = meaning.given("@chat_template");
    const fs::path place =
        hub::model_path(meaning.text(named != nullptr ? "@chat_template" : "@model"));
    std::error_code ignored;
    for (const fs::path& file : {place, place / "chat_template.jinja"}) {
      if (fs::is_regular_file(file, ignored))
        return files::read(file).find("eos_token") != std::string::npos;
    }
    const fs::path file = place / "tokenizer_config.json";
    const json::Value config = json::parse(files::read(file), file.string());
    const json::Value* const written = config.is_object() ? config.find("chat_template") : nullptr;
    return written != nullptr && written->dump().find("eos_token") != std::string::npos;
  } catch (const Error&) {
    return false;  // the reader of the model reports what is wrong
  }
}

// Conversations end as the chat template writes them. If it does not name the tokenizer's end of
// text, another one changes nothing that is learned from them.
void set_end_token(Meaning& meaning) {
  const Setting* const token = meaning.given("@end_token");
  if (token == nullptr) return;
  if (huggingface::has_field(meaning, "messages")) {
    if (template_has_end_token(meaning)) {
      meaning.refuse(fmt::format("{} {} is not supported for a chat template that writes eos_token",
                                 token->flag,
                                 meaning.text("@end_token")),
                     "set it in the tokenizer of the model's folder");
      return;
    }
    meaning.note(fmt::format(
        "{} {}: answers end as the chat template writes them, and generation stops there; the "
        "tokenizer's files are written as they are",
        token->flag,
        meaning.text("@end_token")));
    return;
  }
  meaning.refuse(fmt::format("{} {} is not supported for texts", token->flag, token->value.dump()),
                 "set it in the tokenizer of the model's folder");
}

void set_sft_loss(Meaning& meaning) {
  const std::string loss = meaning.text("@sft_loss", "nll");
  const Setting* const from = meaning.find("@sft_loss");
  if (loss != "nll" && loss != "dft" && loss != "chunked_nll") {
    meaning.refuse(fmt::format("{} {} is not supported", from->flag, loss), "use nll or dft");
  } else if (loss == "dft" || meaning.is_on("@dft")) {
    meaning.set("task.params.token_weights",
                json::Value::string("probability"),
                loss == "dft" ? from : meaning.find("@dft"));
  }
}

void sft(Meaning& meaning) {
  finish(meaning);
  set_end_token(meaning);
  set_sft_loss(meaning);
  const Setting* const template_path = meaning.given("@chat_template");
  if (template_path != nullptr) meaning.copy("task.params.chat_template", template_path);
  if (meaning.value("data.pack")->as_bool())
    meaning.copy("task.params.packing", meaning.find("@packing"));
  // Without completion_only_loss TRL learns the completion of prompts, and all of a conversation.
  const Setting* const completion = meaning.given("@completion_only");
  const Setting* const assistant = meaning.find("@assistant_only");
  if (meaning.is_on("@assistant_only")) {
    meaning.set("task.params.loss_on", json::Value::string("assistant"), assistant);
  } else if (completion != nullptr) {
    const char* const what = meaning.is_on("@completion_only") ? "completion" : "all";
    meaning.set("task.params.loss_on", json::Value::string(what), completion);
  } else if (!huggingface::has_field(meaning, "completion")) {
    meaning.set("task.params.loss_on", json::Value::string("all"), assistant);
  }
}

std::vector<std::string> one_or_more(const Meaning& meaning, std::string_view key) {
  std::vector<std::string> out = meaning.texts(key);
  for (std::string& word : out) {
    // Lists of Python: ['sigmoid', 'sft'].
    std::erase_if(word, [](char c) { return c == '[' || c == ']' || c == '\'' || c == '"'; });
  }
  return out;
}

void dpo(Meaning& meaning) {
  finish(meaning);
  const std::vector<std::string> types = one_or_more(meaning, "@loss_type");
  const Setting* const from = meaning.find("@loss_type");
  json::Value names = json::Value::array();
  for (const std::string& type : types) {
    if (!type.empty()) names.push_back(json::Value::string(type));
  }
  meaning.set(
      "task.params.loss.type", types.size() == 1 ? json::Value::string(types[0]) : names, from);
  const std::vector<std::string> weights = one_or_more(meaning, "@loss_weights");
  if (weights.empty()) return;
  json::Value numbers = json::Value::array();
  for (const std::string& weight : weights)
    numbers.push_back(json::parse(weight, "--loss_weights"));
  meaning.set("task.params.loss.weights", std::move(numbers), meaning.find("@loss_weights"));
}

// Functions of trl.rewards, and reward models.
void set_rewards(Meaning& meaning) {
  std::vector<std::string> names = one_or_more(meaning, "@rewards");
  const Setting* from = meaning.given("@rewards");
  if (const Setting* const model = meaning.given("@reward_model")) {
    names.push_back(model->value.as_string());
    from = model;
  }
  if (from == nullptr) {
    if (meaning.script.find("grpo") != std::string::npos ||
        meaning.script.find("rloo") != std::string::npos) {
      meaning.refuse(fmt::format("{} without a reward", meaning.program),
                     "add --reward_funcs accuracy_reward, or the folder of a reward model");
    }
    return;
  }
  const std::vector<std::string> weights = one_or_more(meaning, "@reward_weights");
  json::Value rewards = json::Value::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    json::Value one = json::Value::object();
    if (name == "accuracy_reward" || name == "reasoning_accuracy_reward") {
      one["type"] = json::Value::string("maths");
      one["field"] = json::Value::string("solution");
    } else if (name == "think_format_reward") {
      one["type"] = json::Value::string("format");
      one["parts"] =
          json::Value::array({json::Value::string("<think>"), json::Value::string("</think>")});
    } else if (name.find('/') != std::string::npos || std::filesystem::exists(name)) {
      one["type"] = json::Value::string("model");
      one["from"] = json::Value::string(name);
    } else {
      meaning.refuse(
          fmt::format("{} {}: there is no such reward", from->flag, name),
          "write a program for it: rl.rewards=[{\"type\": \"command\", \"command\": [...]}]");
      continue;
    }
    if (i < weights.size()) one["weight"] = json::parse(weights[i], "--reward_weights");
    rewards.push_back(std::move(one));
  }
  meaning.set("rl.rewards", std::move(rewards), from);
}

void set_rollouts(Meaning& meaning) {
  const double prompt = meaning.number("@prompt_tokens").value_or(512);
  const double answer = meaning.number("rl.max_new_tokens").value_or(512);
  const Setting* const of = meaning.find("rl.max_new_tokens");
  meaning.set(
      "data.sequence_length", json::Value::integer(static_cast<std::int64_t>(prompt + answer)), of);
  // A rollout has whole batches.
  meaning.drop("data.drop_last");
  if (const Setting* const high = meaning.given("@epsilon_high")) {
    meaning.copy("rl.loss.epsilon_high", high);
  } else {
    meaning.copy("rl.loss.epsilon_high", meaning.find("rl.loss.epsilon_low"));
  }
  if (meaning.is_on("@mask_truncated"))
    meaning.set("rl.truncated", json::Value::string("mask"), meaning.find("@mask_truncated"));
  const Setting* const steps = meaning.given("@steps_per_generation");
  const double accumulation = meaning.number("gradient_accumulation_steps").value_or(1);
  if (steps != nullptr) {
    const double updates = steps->value.as_double() / accumulation;
    if (updates < 1 || updates != static_cast<double>(static_cast<std::int64_t>(updates))) {
      meaning.refuse(
          fmt::format("{}: not a multiple of --gradient_accumulation_steps", steps->flag),
          "give a multiple of it");
    } else {
      meaning.set(
          "rl.mini_batches", json::Value::integer(static_cast<std::int64_t>(updates)), steps);
    }
  }
  if (const Setting* const batch = meaning.given("@generation_batch"))
    meaning.refuse(fmt::format("{} is not supported", batch->flag), "give --steps_per_generation");
  if (const Setting* const column = meaning.given("@prompt_column"))
    meaning.set("data.map.prompt", column->value, column);
  set_rewards(meaning);
}

void grpo(Meaning& meaning) {
  finish(meaning);
  set_rollouts(meaning);
  const std::string scale = text::lower(meaning.text("@scale_rewards", "group"));
  const bool none = scale == "none" || scale == "false";
  meaning.set("rl.advantage.scale",
              json::Value::string(none               ? "none"
                                  : scale == "batch" ? "batch"
                                                     : "group"),
              meaning.find("@scale_rewards"));
  if (meaning.text("@ratio", "token") == "sequence")
    meaning.set("rl.loss.ratio", json::Value::string("mean"), meaning.find("@ratio"));
}

void rloo(Meaning& meaning) {
  finish(meaning);
  set_rollouts(meaning);
  if (const Setting* const range = meaning.given("@clip_range")) {
    const std::vector<std::string> ends = one_or_more(meaning, "@clip_range");
    if (ends.size() == 2)
      meaning.set("rl.advantage.clip_reward", json::parse(ends[1], range->flag), range);
  }
}

void ppo(Meaning& meaning) {
  if (meaning.given("@model") == nullptr) {
    if (const Setting* const model = meaning.given("@sft_model"))
      meaning.flags.settings.push_back({model->flag, "@model", model->value});
  }
  finish(meaning);
  set_rollouts(meaning);
  if (const Setting* const model = meaning.given("@reward_model"))
    meaning.copy("rl.critic.from", model);
  if (const Setting* const penalty = meaning.given("@missing_end")) {
    const json::Value* const own = meaning.value("rl.rewards");
    json::Value rewards = own != nullptr && own->is_array() ? *own : json::Value::array();
    rewards.push_back(json::Value::object(
        {{"type", json::Value::string("missing_end")}, {"weight", penalty->value}}));
    meaning.set("rl.rewards", std::move(rewards), penalty);
  }
  if (const Setting* const episodes = meaning.given("@episodes")) {
    const double batch = meaning.number("train_micro_batch_size_per_gpu").value_or(8) *
                         meaning.number("gradient_accumulation_steps").value_or(1) *
                         static_cast<double>(meaning.ranks.value_or(1));
    meaning.drop("trainer.epochs");
    meaning.set("trainer.max_steps",
                json::Value::integer(
                    static_cast<std::int64_t>((episodes->value.as_double() + batch - 1) / batch)),
                episodes);
  }
}

#define TESSERA_TRL(task)       \
  R"({"task": {"type": ")" task \
  R"("}, "data": {"drop_last": false}, "eval": {"batches": 1000000000}})"
#define TESSERA_PREFER(method)                                   \
  R"({"task": {"type": "prefer", "params": {"method": ")" method \
  R"("}}, "data": {"drop_last": false}, "eval": {"batches": 1000000000}})"

std::vector<std::string_view> tables(std::string_view own) {
  return {own, "trl/script", "trl/model", "trl/common", "huggingface/trainer"};
}

std::vector<std::string_view> rollout_tables(std::string_view own) {
  return {own, "trl/rollouts", "trl/script", "trl/model", "trl/common", "huggingface/trainer"};
}

const bool kPrograms = add_programs({
    {.title = "TRL's sft",
     .names = {"trl sft", "sft.py"},
     .tables = tables("trl/sft"),
     .always = TESSERA_TRL("sft"),
     .rules = sft,
     .file = "config"},
    {.title = "TRL's dpo",
     .names = {"trl dpo", "dpo.py"},
     .tables = tables("trl/dpo"),
     .always = TESSERA_PREFER("dpo"),
     .rules = dpo,
     .file = "config"},
    {.title = "TRL's kto",
     .names = {"trl kto", "kto.py"},
     .tables = tables("trl/kto"),
     .always = TESSERA_PREFER("kto"),
     .rules = finish,
     .file = "config"},
    {.title = "TRL's cpo",
     .names = {"trl cpo", "cpo.py"},
     .tables = tables("trl/cpo"),
     .always = TESSERA_PREFER("cpo"),
     .rules = finish,
     .file = "config"},
    {.title = "TRL's orpo",
     .names = {"trl orpo", "orpo.py"},
     .tables = tables("trl/orpo"),
     .always = TESSERA_PREFER("orpo"),
     .rules = finish,
     .file = "config"},
    {.title = "TRL's reward",
     .names = {"trl reward", "reward.py", "reward_modeling.py"},
     .tables = tables("trl/reward"),
     .always = TESSERA_TRL("reward"),
     .rules = finish,
     .file = "config"},
    {.title = "TRL's grpo",
     .names = {"trl grpo", "grpo.py", "train_grpo.py", "gspo.py"},
     .tables = rollout_tables("trl/grpo"),
     .always = R"({"task": {"type": "rl"}, "rl": {"preset": "trl:grpo"}})",
     .rules = grpo,
     .file = "config"},
    {.title = "TRL's rloo",
     .names = {"trl rloo", "rloo.py", "train_rloo.py"},
     .tables = rollout_tables("trl/rloo"),
     .always = R"({"task": {"type": "rl"}, "rl": {"algorithm": "rloo"}})",
     .rules = rloo,
     .file = "config"},
    {.title = "TRL's ppo",
     .names = {"ppo.py", "ppo_tldr.py", "rloo_tldr.py"},
     .tables = {"trl/ppo", "trl/script", "trl/model", "trl/common", "huggingface/trainer"},
     .always = R"({"task": {"type": "rl"}, "rl": {"algorithm": "ppo"}})",
     .rules = ppo,
     .file = "config"},
    {.title = "TRL's bco.py",
     .names = {"bco.py"},
     .tables = {"trl/script"},
     .refused = "BCO of single completions does not exist here",
     .instead = "use KTO (kto.py), or pairs with --loss_type bco_pair (dpo.py)"},
    {.title = "TRL's gkd.py",
     .names = {"gkd.py", "minillm.py", "gold.py"},
     .tables = {"trl/script"},
     .refused = "distillation on the student's own answers does not exist here",
     .instead = "use distill.teacher with the task sft"},
    {.title = "TRL's vllm-serve",
     .names = {"trl vllm-serve"},
     .tables = {"trl/script"},
     .refused = "no server is needed",
     .instead = "the model that is trained writes the completions itself: leave it out"},
});

}  // namespace
}  // namespace tessera::interop

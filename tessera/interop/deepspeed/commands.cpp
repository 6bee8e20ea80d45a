// SPDX-License-Identifier: Apache-2.0
// DeepSpeed-Chat's three steps, each a main.py in a folder of its own.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/dataset_names.h"
#include "tessera/interop/deepspeed/chat_flags.h"
#include "tessera/interop/deepspeed/chat_records.h"
#include "tessera/interop/deepspeed/data_split.h"
#include "tessera/interop/huggingface/trainer_rules.h"
#include "tessera/interop/option_table.h"

namespace tessera::interop {
namespace {

using Setting = ForeignFlags::Setting;

constexpr std::string_view kRows =
#include "tessera/interop/deepspeed/options.inc"
    ;
const bool kTables = add_option_tables("deepspeed", kRows);

std::vector<double> shares_in(Meaning& meaning) {
  const Setting* const split = meaning.find("@data_split");
  std::vector<double> out;
  double sum = 0;
  for (const std::string& word : meaning.texts("@data_split")) {
    const json::Value share = json::parse(word, split->flag);
    out.push_back(share.is_number() ? share.as_double() : -1.0);
    sum += out.back();
  }
  const bool good = out.size() == 3 && sum > 0 &&
                    std::all_of(out.begin(), out.end(), [](double share) { return share >= 0; });
  if (good) return out;
  meaning.refuse(fmt::format("{} {}: expected three shares", split->flag, split->value.as_string()),
                 "2,4,4");
  return {};
}

json::Value as_paths(const std::vector<std::string>& files) {
  if (files.size() == 1) return json::Value::string(files.front());
  json::Value out = json::Value::array();
  for (const std::string& file : files)
    out.push_back(json::Value::string(file));
  return out;
}

// The files of the step's part of each data set. `split`: "train" or "test".
std::vector<std::string> files_of(Meaning& meaning,
                                  const Setting& names,
                                  const char* split,
                                  const std::vector<double>& shares,
                                  std::size_t part) {
  std::vector<std::string> out;
  for (const json::Value& name : names.value.items()) {
    const auto found = find_dataset(name.as_string(), "");
    if (!found) {
      meaning.refuse(
          fmt::format(
              "{} {}: there is no such data set on this machine", names.flag, name.as_string()),
          how_to_fetch_dataset(name.as_string()));
      continue;
    }
    const bool evaluated = std::string_view(split) == "test";
    const bool one = !shares.empty() && has_train_split_alone(name.as_string());
    std::vector<std::string> files = split_files(*found, one ? "train" : split);
    if (files.empty()) continue;
    const bool whole = shares.empty() || shares[part] == shares[0] + shares[1] + shares[2];
    if (!whole || one || (!shares.empty() && has_own_fields(name.as_string()))) {
      const auto seed = static_cast<std::uint32_t>(meaning.number("trainer.seed").value_or(1234));
      const std::filesystem::path path = write_chat_part(files,
                                                         shares,
                                                         part,
                                                         seed,
                                                         name.as_string(),
                                                         !one        ? ChatRecords::All
                                                         : evaluated ? ChatRecords::Evaluation
                                                                     : ChatRecords::Training);
      if (path.empty()) continue;
      files = {path.string()};
    }
    out.insert(out.end(), files.begin(), files.end());
  }
  return out;
}

void set_data(Meaning& meaning, std::size_t part) {
  const Setting names = *meaning.find("@data");
  const std::vector<double> shares = shares_in(meaning);
  if (!meaning.problems.empty()) return;
  std::vector<std::string> train = files_of(meaning, names, "train", shares, part);
  if (const Setting* const more = meaning.given("@more_data")) {
    const Setting copy = *more;
    const std::vector<std::string> files = files_of(meaning, copy, "train", {}, 0);
    train.insert(train.end(), files.begin(), files.end());
  }
  if (!train.empty()) meaning.set("data.train", as_paths(train), &names);
  if (part == 2) return;
  const std::vector<std::string> test = files_of(meaning, names, "test", shares, part);
  if (!test.empty()) {
    meaning.set("data.validation", as_paths(test), &names);
    meaning.set("eval.every", json::Value::string("epoch"));
  }
}

// The model_type of a folder's config.json; empty: it has none.
std::string model_type_of(const std::string& model) {
  try {
    const std::filesystem::path file =
        std::filesystem::path(hub::model_path(model)) / "config.json";
    const json::Value config = json::parse(files::read(file), file.string());
    const json::Value* const type = config.is_object() ? config.find("model_type") : nullptr;
    return type != nullptr && type->is_string() ? type->as_string() : "";
  } catch (const Error&) {
    return "";  // the reader of the model reports what is wrong
  }
}

// DeepSpeed-Chat sets dropout, hidden_dropout and attention_dropout where a model's settings have
// these names: Llama and its kin have the last one only, and GPT-2 none.
void set_dropout(Meaning& meaning) {
  const Setting* const found = meaning.find("model.dropout");
  const json::Value* const model = meaning.value("model.from");
  if (meaning.value("model.dropout") == nullptr || found == nullptr || model == nullptr) return;
  const std::string type = model_type_of(model->as_string());
  constexpr auto kWithDropout = std::to_array<std::string_view>(
      {"", "opt", "bloom", "gpt_neox", "t5", "mt5", "bart", "bert", "roberta"});
  if (std::ranges::find(kWithDropout, type) != kWithDropout.end()) return;
  const Setting from = *found;
  meaning.drop("model.dropout");
  if (type == "gpt2") {
    meaning.note(
        fmt::format("{} has no effect: DeepSpeed-Chat does not know the names of GPT-2's "
                    "dropouts",
                    from.flag));
  } else {
    meaning.set("model.attention_dropout", from.value, &from);
  }
}

// The steps build these themselves: DeepSpeed's optimizer, clipping and loss scaling.
void finish(Meaning& meaning, std::size_t part) {
  if (meaning.given("@model") == nullptr) {
    meaning.refuse(fmt::format("{} without a model", meaning.program), "add --model_name_or_path");
  } else {
    huggingface::use_model(meaning, meaning.given("@model"));
    set_dropout(meaning);
  }
  set_data(meaning, part);
  const json::Value* const half = meaning.value("fp16.enabled");
  if (half != nullptr && half->as_bool())
    meaning.set("fp16.loss_scale_window", json::Value::integer(100));
  if (meaning.value("adapter.type") != nullptr) {
    const Setting* const layers = meaning.find("@lora_modules");
    meaning.set(
        "adapter.exclude", json::Value::string(names_without(layers->value.as_string())), layers);
    meaning.copy("optimizer.lr", meaning.find("@adapter_rate"));
  }
  if (meaning.value("eval.every") == nullptr) meaning.drop("eval");
  meaning.set("checkpoint.every", json::Value::integer(0));
}

void step1(Meaning& meaning) {
  finish(meaning, 0);
}

// A pair is one row of two sequences.
void set_pairs(Meaning& meaning) {
  const Setting* const length = meaning.find("@sequence");
  meaning.set("data.sequence_length",
              json::Value::integer(2 * length->value.as_integer().value_or(512)),
              length);
}

void reward(Meaning& meaning) {
  set_pairs(meaning);
  finish(meaning, 1);
  const Setting* const every = meaning.given("@eval_interval");
  if (every != nullptr && every->value.as_double() > 0 &&
      meaning.value("data.validation") != nullptr) {
    meaning.copy("eval.every", every);
    meaning.copy("eval.batches", meaning.find("@eval_batches"));
  }
}

void dpo(Meaning& meaning) {
  set_pairs(meaning);
  finish(meaning, 1);
}

void rlhf(Meaning& meaning) {
  finish(meaning, 2);
  meaning.drop("data.drop_last");  // a rollout has whole batches
  const Setting* const critic = meaning.given("@critic");
  if (critic == nullptr) {
    meaning.refuse(fmt::format("{} without a reward model", meaning.program),
                   "add --critic_model_name_or_path");
    return;
  }
  meaning.set("rl.rewards",
              json::Value::array({json::Value::object(
                  {{"type", json::Value::string("model")}, {"from", critic->value}})}),
              critic);
  meaning.copy("rl.critic.from", critic);
  const Setting* const generated = meaning.find("@generation_batch");
  const double micro = meaning.number("train_micro_batch_size_per_gpu").value_or(16);
  const double batches =
      meaning.number("@generation_batches").value_or(1) * generated->value.as_double();
  // Several updates learn from one rollout if it has more completions than an update.
  const double updates =
      batches / (micro * meaning.number("gradient_accumulation_steps").value_or(1));
  // Several rollouts of the same policy are accumulated into one update: one rollout of its size.
  const bool accumulates = updates < 1 && updates > 0 && 1 / updates == std::floor(1 / updates);
  if (accumulates) {
    meaning.note(fmt::format("one rollout has the completions of an update, {} of them",
                             micro * meaning.number("gradient_accumulation_steps").value_or(1)));
  } else if (updates != std::floor(updates) || updates < 1) {
    meaning.refuse(fmt::format("{} {}: not a multiple of the batch of an update",
                               generated->flag,
                               generated->value.dump()),
                   "--per_device_generation_batch_size equal to --per_device_training_batch_size");
  } else if (updates > 1) {
    meaning.set(
        "rl.mini_batches", json::Value::integer(static_cast<std::int64_t>(updates)), generated);
  }
  if (const Setting* const stage = meaning.given("@critic_stage"); stage != nullptr)
    meaning.copy("rl.models.critic.zero_stage", stage);
  if (meaning.value("rl.models.critic.adapter.type") != nullptr) {
    const Setting* const layers = meaning.find("@critic_lora_modules");
    meaning.set("rl.models.critic.adapter.exclude",
                json::Value::string(names_without(layers->value.as_string())),
                layers);
  }
  if (meaning.value("rl.ptx.data") != nullptr)
    meaning.copy("rl.ptx.coefficient", meaning.find("@unsup_coefficient"));
  if (meaning.is_on("@test_mode") && meaning.number("@stop_step").value_or(0) > 0)
    meaning.copy("trainer.max_steps", meaning.find("@stop_step"));
}

// ---- chat.py, prompt_eval.py ----

void chat(Meaning& meaning) {
  const Setting* const path = meaning.given("@path");
  if (path == nullptr) {
    meaning.refuse(fmt::format("{} without a model", meaning.program), "add --path MODEL");
    return;
  }
  meaning.command = "chat";
  meaning.words = {
      path->value.as_string(), "--max-new-tokens", meaning.find("@new_tokens")->value.dump()};
}

// The prompts of DeepSpeed-Chat's prompt_eval.py in English (DeepSpeedExamples, Apache
// License 2.0).
constexpr auto kPrompts = std::to_array<std::string_view>(
    {"Human: Please tell me about Microsoft in a few sentence? Assistant:",
     "Human: Explain the moon landing to a 6 year old in a few sentences. Assistant:",
     "Human: Write a short poem about a wise frog. Assistant:",
     "Human: Who was president of the United States in 1955? Assistant:",
     "Human: How does a telescope work? Assistant:",
     "Human: Why do birds migrate south for the winter? Assistant:"});

void prompt_eval(Meaning& meaning) {
  const Setting *const one = meaning.given("@path"), *const other = meaning.given("@other");
  if (one == nullptr || other == nullptr) {
    meaning.refuse(fmt::format("{} compares two models, and one is missing", meaning.program),
                   "add --model_name_or_path_baseline and --model_name_or_path_finetune");
    return;
  }
  if (meaning.text("@language") != "English") {
    meaning.refuse(
        fmt::format(
            "{} {} is not supported", meaning.find("@language")->flag, meaning.text("@language")),
        "write your prompts into a file: tessera prompt-eval A B --prompts FILE.jsonl");
    return;
  }
  std::string lines;
  for (const std::string_view prompt : kPrompts)
    lines +=
        json::Value::object({{"prompt", json::Value::string(std::string(prompt))}}).dump() + "\n";
  const std::filesystem::path file = files::cache_dir() / "parts" / "prompt_eval.jsonl";
  std::error_code ignored;
  std::filesystem::create_directories(file.parent_path(), ignored);
  files::write_atomic(file, lines);
  meaning.command = "prompt-eval";
  meaning.words = {one->value.as_string(),
                   other->value.as_string(),
                   "--prompts",
                   file.string(),
                   "--max-new-tokens",
                   meaning.find("@new_tokens")->value.dump()};
}

#define TESSERA_CHAT_STEP(task, more)                                 \
  R"({"task": )" task R"(, "data": {"drop_last": false)" more         \
  R"(}, "eval": {"batches": 1000000000}, "gradient_clipping": 1.0, )" \
  R"("optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95], "eps": 1e-8}}})"

const bool kPrograms = add_programs({
    {.title = "DeepSpeed-Chat's step 1",
     .names = {"main.py"},
     .folders = {"step1_supervised_finetuning"},
     .marks = {"sft_only_data_path"},
     .tables = {"deepspeed/step1", "train/chat", "train/flags"},
     .always = TESSERA_CHAT_STEP(
         R"({"type": "sft", "params": {"loss_on": "all"}})",
         R"(, "pack": false, "format": "prompt_completion", "map": {"completion": "chosen"})"),
     .rules = step1},
    {.title = "DeepSpeed-Chat's step 2",
     .names = {"main.py"},
     .folders = {"step2_reward_model_finetuning"},
     .tables = {"deepspeed/reward", "train/chat", "train/flags"},
     .always = TESSERA_CHAT_STEP(R"({"type": "reward", "params": {"compare": "tokens"}})", ""),
     .rules = reward},
    {.title = "DeepSpeed-Chat's step 2 with DPO",
     .names = {"main.py"},
     .folders = {"step2_dpo_finetuning"},
     .tables = {"deepspeed/dpo", "train/chat", "train/flags"},
     .always = TESSERA_CHAT_STEP(R"({"type": "prefer", "params": {"method": "dpo"}})", ""),
     .rules = dpo},
    {.title = "DeepSpeed-Chat's step 3",
     .names = {"main.py"},
     .folders = {"step3_rlhf_finetuning"},
     .marks = {"actor_model_name_or_path", "critic_model_name_or_path"},
     .tables = {"deepspeed/rlhf", "train/chat", "train/flags"},
     .always = TESSERA_CHAT_STEP(R"({"type": "rl", "params": {"preset": "dschat:ppo"}})", ""),
     .rules = rlhf},
    {.title = "DeepSpeed-Chat's chat.py",
     .names = {"chatbot.py"},
     .tables = {"deepspeed/chat"},
     .rules = chat},
    {.title = "DeepSpeed-Chat's chat.py",
     .names = {"chat.py"},
     .folders = {"DeepSpeed-Chat", "deepspeed-chat"},
     .marks = {"path"},
     .tables = {"deepspeed/chat"},
     .rules = chat},
    {.title = "DeepSpeed-Chat's prompt_eval.py",
     .names = {"prompt_eval.py"},
     .tables = {"deepspeed/prompt_eval"},
     .rules = prompt_eval},
    {.title = "DeepSpeed-Chat's rw_eval.py",
     .names = {"rw_eval.py"},
     .tables = {"deepspeed/reward"},
     .refused = "its two pairs of answers are part of the script",
     .instead = "tessera eval RUN --data pairs.jsonl, or tessera score RUN"},
    {.title = "DeepSpeedExamples' compression",
     .names = {"run_glue_no_trainer.py", "run_clm_no_trainer.py", "run_glue.py"},
     .folders = {"DeepSpeedExamples/compression", "data_efficiency"},
     .marks = {"distill_method",
               "save_best_model",
               "clean_best_model",
               "num_warmup_epochs",
               "pretrained_dir_student",
               "random_ltd"},
     .tables = {"deepspeed/examples"},
     .refused = "compression and random layer dropping are not built",
     .instead = "train a smaller model with distill.teacher, or run the script of transformers"},
    {.title = "DeepSpeedExamples' BERT, pictures and others",
     .names = {"deepspeed_train.py",
               "nvidia_run_squad_deepspeed.py",
               "nvidia_run_squad_baseline.py",
               "run_glue_classifier_bert_base.py",
               "run_glue_classifier_bert_large.py",
               "cifar10_deepspeed.py",
               "main_cifar.py",
               "main_imagenet.py",
               "gan_deepspeed_train.py",
               "offload_states.py",
               "train_sd_distil_lora.py",
               "analyze_data.py"},
     .tables = {"deepspeed/examples"},
     .refused = "its model and its data are part of the script",
     .instead = "tessera init --help writes a configuration; run_glue.py and run_mlm.py of "
                "transformers are read"},
});

}  // namespace
}  // namespace tessera::interop

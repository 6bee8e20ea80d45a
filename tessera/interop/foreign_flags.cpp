// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/foreign_flags.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/overrides.h"
#include "tessera/interop/deepspeed/chat_flags.h"
#include "tessera/interop/foreign_keys.h"
#include "tessera/interop/option_table.h"
#include "tessera/interop/option_values.h"
#include "tessera/interop/short_forms.h"

namespace tessera::interop {
namespace {

using namespace foreign_keys;

constexpr std::string_view kRows =
#include "tessera/interop/options.inc"
    ;
const bool kAdded = add_option_tables("train", kRows);

constexpr std::array<std::string_view, 2> kTables = {"train/flags", "train/chat"};

const Option* find_flag(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return nullptr;
  const std::string_view name = word.substr(0, word.find('='));
  // A short flag has one dash and one letter.
  const bool is_short = word[1] != '-';
  if (is_short != (name.size() == 2)) return nullptr;
  for (const std::string_view table : kTables) {
    if (const Option* const found = option_table(table).find(name)) return found;
  }
  return nullptr;
}

// Sets one of Adam's two betas; the other one is kept, or has its default.
void set_beta(json::Value& source, std::size_t index, const ForeignFlags::Setting& setting) {
  json::Value betas = json::Value::array({json::Value::number(0.9), json::Value::number(0.999)});
  const json::Value* at = &source;
  for (const char* step : {"optimizer", "params", "betas"})
    at = at != nullptr && at->is_object() ? at->find(step) : nullptr;
  if (at != nullptr && at->is_array() && at->items().size() == 2) betas = *at;
  betas.items()[index] = setting.value;
  config::set_key(source, "optimizer.params.betas", betas, setting.flag);
}

// scheduler.type of the configuration; empty: none.
std::string schedule_in(const json::Value& source) {
  const json::Value* scheduler = source.is_object() ? source.find("scheduler") : nullptr;
  if (scheduler == nullptr || !scheduler->is_object()) return "";
  const json::Value* type = scheduler->find("type");
  return type != nullptr && type->is_string() ? type->as_string() : "";
}

// DeepSpeed's schedules with a warm-up; Hugging Face's names contain underscores.
bool is_deepspeed_warmup(std::string_view schedule) {
  const std::string name = text::lower(schedule);
  return name.starts_with("warmup") && !name.starts_with("warmup_");
}

bool is_deepspeed_schedule(std::string_view schedule) {
  const std::string name = text::lower(schedule);
  return is_deepspeed_warmup(name) || name == "onecycle" || name == "lrrangetest";
}

std::string warmup_key(json::Value& source) {
  const std::string type = schedule_in(source);
  if (type.empty()) {
    config::set_key(
        source, std::string(kSchedule), json::Value::string("linear"), "--warmup_steps");
    return "scheduler.num_warmup_steps";
  }
  return is_deepspeed_warmup(type) ? "scheduler.warmup_num_steps" : "scheduler.num_warmup_steps";
}

// True when the file has a DeepSpeed schedule: like Hugging Face's Trainer, the program then keeps
// it and ignores the flag, because its parameters mean nothing to another schedule.
bool file_keeps_schedule(const json::Value& source,
                         const ForeignFlags::Setting& setting,
                         std::vector<std::string>& notes) {
  const std::string type = schedule_in(source);
  if (setting.key != kSchedule || !is_deepspeed_schedule(type)) return false;
  if (text::lower(type) != text::lower(setting.value.as_string())) {
    notes.push_back(
        fmt::format("{} {} has no effect: the schedule of the file, {}, is used, as in Hugging "
                    "Face; --set scheduler.type=... replaces it",
                    setting.flag,
                    setting.value.as_string(),
                    type));
  }
  return true;
}

std::optional<std::int64_t> integer_at(const json::Value& source,
                                       std::initializer_list<const char*> path) {
  const json::Value* at = &source;
  for (const char* step : path)
    at = at != nullptr && at->is_object() ? at->find(step) : nullptr;
  return at != nullptr && at->is_number() ? at->as_integer() : std::nullopt;
}

// Hugging Face's warm-up ratio: a share of all steps, unless steps are given.
void set_warmup_ratio(json::Value& source, const ForeignFlags::Setting& setting) {
  const double ratio = setting.value.as_double();
  TESSERA_REQUIRE(ratio >= 0.0 && ratio <= 1.0,
                  Config,
                  fmt::format("{} {}: expected 0 to 1", setting.flag, setting.value.dump()),
                  "--warmup_ratio 0.03 is 3 steps in a hundred");
  const auto steps = integer_at(source, {"trainer", "max_steps"});
  TESSERA_REQUIRE(steps.has_value(),
                  Config,
                  fmt::format("{} needs the number of steps, and trainer.max_steps is not given: "
                              "the length of an epoch is only known once the data has been read",
                              setting.flag),
                  "add --max_steps 1000, or give --warmup_steps instead");
  const auto warmup = static_cast<std::int64_t>(std::ceil(static_cast<double>(*steps) * ratio));
  config::set_key(source, warmup_key(source), json::Value::integer(warmup), setting.flag);
}

// Megatron-LM counts the layers of a chunk, and tessera the chunks of a stage.
void set_chunks(json::Value& source, const ForeignFlags::Setting& setting) {
  const std::int64_t stages = integer_at(source, {"parallel", "pipeline", "size"}).value_or(1);
  const auto layers = integer_at(source, {"model", "num_layers"});
  const auto each = setting.value.as_integer();
  TESSERA_REQUIRE(layers.has_value(),
                  Config,
                  fmt::format("{} needs model.num_layers", setting.flag),
                  "add it to CONFIG or give --num-layers 12, or set parallel.pipeline.chunks "
                  "instead");
  const bool divides = each && *each >= 1 && stages >= 1 && *layers % (*each * stages) == 0;
  TESSERA_REQUIRE(
      divides,
      Config,
      fmt::format("{} {}: {} layers cannot be divided over {} {} in chunks of that size",
                  setting.flag,
                  setting.value.dump(),
                  *layers,
                  stages,
                  stages == 1 ? "stage" : "stages"),
      "set parallel.pipeline.chunks instead: chunks may differ in size");
  config::set_key(source, kChunks, json::Value::integer(*layers / (*each * stages)), setting.flag);
}

// Megatron-LM also refuses the combination.
void require_one_count_of_chunks(const ForeignFlags& flags, const ForeignFlags::Setting& layers) {
  for (const ForeignFlags::Setting& setting : flags.settings) {
    TESSERA_REQUIRE(
        setting.key != kChunks,
        Config,
        fmt::format(
            "{} and {} both set the number of chunks of a stage", layers.flag, setting.flag),
        "keep one of them");
  }
}

// Megatron-LM's names for what context-parallel ranks send to each other. All of them compute the
// same attention; those that are not built are a ring here.
void set_sharing(json::Value& source, const ForeignFlags::Setting& setting) {
  const std::string& word = setting.value.as_string();
  const bool ring = word == "p2p" || word == "allgather" || word == "a2a+p2p";
  TESSERA_REQUIRE(ring || word == "a2a",
                  Config,
                  fmt::format("{} {}: unknown", setting.flag, word),
                  "use p2p (ring) or a2a (Ulysses)");
  config::set_key(source,
                  "parallel.context.mode",
                  json::Value::string(ring ? "ring" : "ulysses"),
                  setting.flag);
}

// Hugging Face's strategies: "no", "steps" (as given by --eval_steps and --save_steps), "epoch",
// and for checkpoints "best".
void set_strategy(json::Value& source, const ForeignFlags::Setting& setting) {
  const std::string& word = setting.value.as_string();
  const bool saves = setting.key == kSave;
  const bool best = saves && word == "best";
  TESSERA_REQUIRE(word == "no" || word == "steps" || word == "epoch" || best,
                  Config,
                  fmt::format("{} {}: unknown", setting.flag, word),
                  saves ? "use no, steps, epoch or best" : "use no, steps or epoch");
  if (word == "steps") return;
  const json::Value every = word == "epoch" ? json::Value::string(word) : json::Value::integer(0);
  config::set_key(source, saves ? "checkpoint.every" : "eval.every", every, setting.flag);
  if (best) config::set_key(source, "checkpoint.best", json::Value::boolean(true), setting.flag);
}

// Hugging Face's metrics of evaluations have the prefix "eval_".
void set_best_metric(json::Value& source,
                     const ForeignFlags::Setting* metric,
                     const ForeignFlags::Setting* greater) {
  if (metric == nullptr && greater == nullptr) return;
  constexpr std::string_view kPrefix = "eval_";
  std::string name = metric == nullptr ? "loss" : metric->value.as_string();
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  json::Value best = json::Value::string(name);
  if (greater != nullptr) {
    best = json::Value::object(
        {{"metric", best},
         {"mode", json::Value::string(greater->value.as_bool() ? "max" : "min")}});
  }
  config::set_key(source, "eval.best", best, (metric != nullptr ? metric : greater)->flag);
}

// Sets a key that needs no other setting.
void set_one(json::Value& source, const ForeignFlags::Setting& setting) {
  // A name for the rules of a program.
  if (setting.key.starts_with('@') && setting.key != kSharing) return;
  if (setting.key.starts_with(kBetas))
    return set_beta(source, setting.key.back() == '1' ? 1 : 0, setting);
  if (setting.key == kSharing) return set_sharing(source, setting);
  config::set_key(source, setting.key, setting.value, setting.flag);
}

}  // namespace

ForeignFlags take_foreign_flags(std::vector<std::string>& words) {
  ForeignFlags out;
  std::vector<std::string> kept;
  OptionWords reader(words);
  while (!reader.done()) {
    const Option* const option = find_flag(reader.word());
    if (option == nullptr) {
      kept.push_back(reader.word());
      reader.skip();
      continue;
    }
    const std::string typed = reader.word().substr(0, reader.word().find('='));
    TESSERA_REQUIRE(option->kind != OptionClass::Refused,
                    Unsupported,
                    fmt::format("not built yet: {}", typed),
                    std::string(option->note));
    // Words behind a value may be CONFIG, unless it was named before.
    const bool configured = !out.config.empty() || (!kept.empty() && kept.front()[0] != '-');
    set_option(typed, *option, reader.take(*option, configured), out);
  }
  words = std::move(kept);
  return out;
}

std::string config_of(const std::string& named, const ForeignFlags& flags) {
  return named.empty() ? flags.config : named;
}

std::vector<std::string> apply(const ForeignFlags& flags,
                               json::Value& source,
                               std::span<const std::string> overrides) {
  std::vector<std::string> notes;
  // Flags set current names: "pipeline": 2 has no size, and an old name would coexist with the
  // new one.
  source = in_current_names(std::move(source));
  const ForeignFlags::Setting *chunks = nullptr, *ratio = nullptr, *warmup = nullptr,
                              *metric = nullptr, *greater = nullptr, *evaluate = nullptr,
                              *save = nullptr;
  ChatSettings chat;
  const std::pair<std::string_view, const ForeignFlags::Setting**> later[] = {
      {kVirtual, &chunks},
      {kRatio, &ratio},
      {kWarmup, &warmup},
      {kMetric, &metric},
      {kGreater, &greater},
      {kEvaluate, &evaluate},
      {kSave, &save},
      {kLoraRate, &chat.lora_rate},
      {kMinimumRate, &chat.minimum_rate},
      {kPromptLength, &chat.prompt},
      {kAnswerLength, &chat.answer},
      {kFurtherData, &chat.further_data}};
  for (const ForeignFlags::Setting& setting : flags.settings) {
    const auto* const at = std::find_if(std::begin(later), std::end(later), [&](const auto& one) {
      return one.first == setting.key;
    });
    if (at != std::end(later)) {
      *at->second = &setting;
      continue;
    }
    if (file_keeps_schedule(source, setting, notes)) continue;
    set_one(source, setting);
  }
  for (const ForeignFlags::Setting* strategy : {evaluate, save}) {
    if (strategy != nullptr) set_strategy(source, *strategy);
  }
  set_best_metric(source, metric, greater);
  apply_chat_settings(chat, source, notes);
  if (chunks != nullptr) {
    require_one_count_of_chunks(flags, *chunks);
    set_chunks(source, *chunks);
  }
  for (const std::string& assignment : overrides)
    config::apply_override(source, assignment);
  // In Hugging Face's Trainer, with 0 steps the ratio counts, and steps below 1 are a ratio.
  const double steps = warmup == nullptr ? 0 : warmup->value.as_double();
  if (steps > 0 && steps < 1) {
    set_warmup_ratio(source, *warmup);
  } else if (ratio != nullptr && steps <= 0) {
    set_warmup_ratio(source, *ratio);
  } else if (warmup != nullptr) {
    config::set_key(source, warmup_key(source), warmup->value, warmup->flag);
  }
  return notes;
}

std::vector<std::string> foreign_flag_names() {
  std::vector<std::string> out;
  for (const std::string_view table : kTables) {
    for (const Option& option : option_table(table).options()) {
      if (option.names.front().size() > 1) out.push_back(fmt::format("--{}", option.names.front()));
    }
  }
  return out;
}

std::string foreign_flags_help() {
  std::string out =
      "Flags of DeepSpeed, DeepSpeed-Chat, Hugging Face and Megatron-LM set the corresponding "
      "keys:";
  std::string line = "\n ";
  for (const std::string_view table : kTables) {
    for (const Option& option : option_table(table).options()) {
      if (option.kind != OptionClass::Mapped) continue;
      const std::string name = fmt::format("--{}", option.names.front());
      if (line.size() + name.size() > 96) {
        out += line;
        line = "\n ";
      }
      line += " " + name;
    }
  }
  return out + line;
}

}  // namespace tessera::interop

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
#include "tessera/interop/deepspeed/chat_flag_table.h"
#include "tessera/interop/deepspeed/chat_flags.h"
#include "tessera/interop/foreign_flag_table.h"
#include "tessera/interop/megatron/flags.h"
#include "tessera/interop/monitor_flags.h"
#include "tessera/interop/short_forms.h"

namespace tessera::interop {
namespace {

using namespace flag_table;

constexpr std::array<std::span<const Flag>, 2> kAllFlags = {kFlags, kChatFlags};

const Flag* find_flag(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return nullptr;
  std::string name(word.substr(0, word.find('=')));
  if (word[1] == '-') std::replace(name.begin() + 2, name.end(), '-', '_');
  for (const std::span<const Flag> flags : kAllFlags) {
    const auto it = std::find_if(
        flags.begin(), flags.end(), [&](const Flag& flag) { return flag.name == name; });
    if (it != flags.end()) return &*it;
  }
  return nullptr;
}

bool is_switch(Kind kind) {
  return kind == Kind::Switch || kind == Kind::Off || kind == Kind::Stage || kind == Kind::Zero ||
         kind == Kind::Ema || kind == Kind::Questions || kind == Kind::ExpertBias;
}

// DeepSpeed-Chat's decay of the average of the actor's weights.
constexpr double kChatEma = 0.992;
// Megatron-LM's default of --moe-router-bias-update-rate.
constexpr double kExpertBias = 1e-3;

// The value of a switch that is on.
json::Value switched(Kind kind, bool on) {
  if (kind == Kind::Zero) return json::Value::integer(0);
  if (kind == Kind::Ema) return json::Value::number(kChatEma);
  if (kind == Kind::ExpertBias) return json::Value::number(kExpertBias);
  if (kind == Kind::Questions) return json::Value::string("questions");
  if (kind == Kind::Stage) return json::Value::integer(on ? 1 : 0);
  return json::Value::boolean(kind == Kind::Off ? !on : on);
}

std::optional<bool> truth(std::string_view word) {
  const std::string lower = text::lower(word);
  if (lower == "true" || lower == "1") return true;
  if (lower == "false" || lower == "0") return false;
  return std::nullopt;
}

// Reads one flag at words[at], with its value inside the word or in the next one, and advances past
// both.
class Reader {
 public:
  explicit Reader(const std::vector<std::string>& words) : words_(words) {}

  [[nodiscard]] bool done() const { return at_ >= words_.size(); }
  [[nodiscard]] const std::string& word() const { return words_[at_]; }
  void skip() { ++at_; }
  // True if the next word is not a flag.
  [[nodiscard]] bool has_value() const { return !done() && belongs(words_[at_], Kind::Text); }

  // The value of the flag here, if there is one; a following flag is not a value.
  std::optional<std::string> value(Kind kind) {
    const std::string word = words_[at_++];
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) return word.substr(equals + 1);
    if (done() || !belongs(words_[at_], kind)) return std::nullopt;
    return words_[at_++];
  }

 private:
  static bool belongs(const std::string& word, Kind kind) {
    if (is_switch(kind) || kind == Kind::ToldSwitch) return truth(word).has_value();
    const bool negative =
        word.size() > 1 && word[0] == '-' && (word[1] == '.' || (word[1] >= '0' && word[1] <= '9'));
    return word.empty() || word[0] != '-' || negative;
  }
  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
};

json::Value number(const std::string& flag, const std::string& text) {
  try {
    json::Value out = json::parse(text, flag);
    if (out.is_number()) return out;
  } catch (const Error&) {
    // reported below, as an error of the command line
  }
  throw Error(
      Error::Kind::Config, fmt::format("{}: expected a number, found \"{}\"", flag, text), "");
}

json::Value object(const std::string& flag, const std::string& text) {
  try {
    json::Value out = json::parse(text, flag);
    if (out.is_object()) return out;
  } catch (const Error&) {
    // reported below, as an error of the command line
  }
  throw Error(Error::Kind::Config,
              fmt::format("{}: expected an object of JSON, found \"{}\"", flag, text),
              "write it between single quotes: '{\"prompt\": \"question\"}'");
}

// ["sport", "arts"], or sport,arts.
json::Value names_in(const std::string& flag, const std::string& text) {
  if (text::trim(text).starts_with("[")) {
    try {
      return json::parse(text, flag);
    } catch (const Error&) {
      throw Error(Error::Kind::Config,
                  fmt::format("{}: expected a list of JSON, found \"{}\"", flag, text),
                  "separate the names by commas: sport,arts");
    }
  }
  json::Value out = json::Value::array();
  for (const std::string& name : text::split(text, ','))
    out.push_back(json::Value::string(std::string(text::trim(name))));
  return out;
}

// A backend of torch.distributed.
void read_backend(const std::string& typed, const std::string& value, ForeignFlags& out) {
  const std::string name = text::lower(value);
  if (name == "nccl") {
    out.notes.push_back(fmt::format(
        "{} {} has no effect here: ranks exchange data in memory of the host", typed, value));
    return;
  }
  TESSERA_REQUIRE(name == "gloo" || name == "mpi" || name == "ucx",
                  Config,
                  fmt::format("{} {}: there is no such backend", typed, value),
                  "choose gloo, mpi or nccl, or remove it");
  out.settings.push_back({typed, "run.transport", json::Value::string(name)});
}

/// The words of --fsdp and --sharded_ddp: the ones that divide parameters, gradients or optimizer
/// states are stages of ZeRO, with the same bits.
void add_sharded(const std::string& typed, const std::string& value, ForeignFlags& out) {
  static const std::map<std::string_view, std::int64_t> stages = {{"no_shard", 0},
                                                                  {"simple", 2},
                                                                  {"zero_dp_2", 2},
                                                                  {"shard_grad_op", 2},
                                                                  {"zero_dp_3", 3},
                                                                  {"full_shard", 3}};
  for (const std::string& word :
       text::split(value, value.find(',') == std::string::npos ? ' ' : ',')) {
    const std::string_view name = text::trim(word);
    if (name.empty()) continue;
    if (name == "auto_wrap" || name == "offload") {
      out.notes.push_back(fmt::format("{} {} has no effect here: {}",
                                      typed,
                                      name,
                                      name == "offload"
                                          ? "the states are in the memory of the host already"
                                          : "each block is gathered by itself"));
      continue;
    }
    const auto found = stages.find(name);
    TESSERA_REQUIRE(
        found != stages.end(),
        Config,
        fmt::format("{} {}: unknown", typed, name),
        name.starts_with("hybrid")
            ? "use --zero_stage 3 with zero_optimization.mics_shard_size, the ranks of a group"
            : "use full_shard, shard_grad_op, no_shard, zero_dp_2, zero_dp_3 or simple");
    out.settings.push_back({typed, "zero_optimization.stage", json::Value::integer(found->second)});
  }
}

void read_config_flag(const std::string& typed,
                      const std::optional<std::string>& value,
                      ForeignFlags& out) {
  // DeepSpeed's own launcher writes a bare --deepspeed along with --deepspeed_config.
  if (!value) return;
  TESSERA_REQUIRE(out.config.empty() || out.config == *value,
                  Config,
                  fmt::format("{}: two configurations: {} and {}", typed, out.config, *value),
                  "name one of them");
  out.config = *value;
}

// `more_values`: words after the flag's value belong to a flag that takes several.
void read_flag(Reader& reader, const Flag& flag, bool more_values, ForeignFlags& out) {
  const std::string typed = reader.word().substr(0, reader.word().find('='));
  TESSERA_REQUIRE(flag.kind != Kind::Refused,
                  Unsupported,
                  fmt::format("not built yet: {}", typed),
                  std::string(flag.key));
  if (flag.kind == Kind::Told) {
    reader.skip();
    out.notes.push_back(fmt::format("{} has no effect here: {}", typed, flag.key));
    return;
  }
  const std::optional<std::string> value = reader.value(flag.kind);
  if (flag.kind == Kind::Config && flag.name.find("config") == std::string_view::npos)
    return read_config_flag(typed, value, out);
  if (flag.kind == Kind::ToldSwitch) {
    out.notes.push_back(fmt::format("{} has no effect here: {}", typed, flag.key));
    return;
  }
  if (is_switch(flag.kind)) {
    const auto on = value ? truth(*value) : std::optional(true);
    TESSERA_REQUIRE(on.has_value(), Config, fmt::format("{}: expected true or false", typed), "");
    const bool only_on = flag.kind == Kind::Zero || flag.kind == Kind::Ema ||
                         flag.kind == Kind::Questions || flag.kind == Kind::ExpertBias;
    if (*on || !only_on)
      out.settings.push_back({typed, std::string(flag.key), switched(flag.kind, *on)});
    return;
  }
  TESSERA_REQUIRE(
      value.has_value(), Config, typed + ": the value is missing", "see: tessera train --help");
  switch (flag.kind) {
    case Kind::Rank:
      TESSERA_REQUIRE(number(typed, *value).as_integer().has_value(),
                      Config,
                      fmt::format("{} {}: expected an integer", typed, *value),
                      "launchers set it by themselves: remove it");
      return;
    case Kind::ToldValue:
      out.notes.push_back(fmt::format("{} has no effect here: {}", typed, flag.key));
      return;
    case Kind::One:
      TESSERA_REQUIRE(*value == flag.key,
                      Unsupported,
                      fmt::format("not built yet: {} {}, several hosts", typed, *value),
                      std::string(kNoHosts));
      return;
    case Kind::Config:
      return read_config_flag(typed, value, out);
    case Kind::LoraRank:
      return add_lora_rank(typed, std::string(flag.key), *value, out);
    case Kind::Dtype:
      return add_dtype(typed, *value, out);
    case Kind::DataPaths: {
      std::vector<std::string> paths = {*value};
      while (more_values && reader.has_value()) {
        paths.push_back(reader.word());
        reader.skip();
      }
      return add_data_paths(typed, std::string(flag.key), paths, out);
    }
    case Kind::Object:
      out.settings.push_back({typed, std::string(flag.key), object(typed, *value)});
      return;
    case Kind::Names:
      out.settings.push_back({typed, std::string(flag.key), names_in(typed, *value)});
      return;
    case Kind::ReportTo:
      return add_report_to(typed, *value, out);
    case Kind::BoardFolder:
      return add_board_folder(typed, *value, flag.key == "on", out);
    case Kind::WandbProject:
      return add_wandb_project(typed, *value, out);
    case Kind::MegatronRate:
      return add_megatron_rate(typed, flag.key, *value, out);
    case Kind::Vocabulary:
      out.settings.push_back({typed, "tokenizer.type", json::Value::string("gpt2")});
      break;
    case Kind::Backend:
      return read_backend(typed, *value, out);
    case Kind::Split:
      return add_split(typed, *value, out);
    case Kind::DropPolicy:
      return add_drop_policy(typed, *value, out);
    case Kind::Balancing:
      return add_balancing(typed, *value, out);
    case Kind::Sharded:
      return add_sharded(typed, *value, out);
    case Kind::RunName:
      return add_run_name(typed, *value, out);
    case Kind::LoraModules:
      out.settings.push_back(
          {typed, std::string(flag.key), json::Value::string(names_without(*value))});
      return;
    default:
      break;
  }
  const bool text = flag.kind == Kind::Text || flag.kind == Kind::Vocabulary;
  json::Value read = text ? json::Value::string(*value) : number(typed, *value);
  // Hugging Face's notation for "not given".
  if (flag.name == "--max_steps" && read.as_double() < 0) return;
  const std::string key =
      flag.kind == Kind::Beta ? fmt::format("{}{}", kBetas, flag.key) : std::string(flag.key);
  out.settings.push_back({typed, key, std::move(read)});
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

// Megatron-LM's names for what context-parallel ranks send to each other.
void set_sharing(json::Value& source, const ForeignFlags::Setting& setting) {
  const std::string& word = setting.value.as_string();
  const bool ring = word == "p2p";
  TESSERA_REQUIRE(ring || word == "a2a",
                  Unsupported,
                  fmt::format("not built yet: {} {}", setting.flag, word),
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
  if (setting.key.starts_with(kBetas))
    return set_beta(source, setting.key.back() == '1' ? 1 : 0, setting);
  if (setting.key == kSharing) return set_sharing(source, setting);
  config::set_key(source, setting.key, setting.value, setting.flag);
}

}  // namespace

ForeignFlags take_foreign_flags(std::vector<std::string>& words) {
  ForeignFlags out;
  std::vector<std::string> kept;
  Reader reader(words);
  while (!reader.done()) {
    if (const Flag* flag = find_flag(reader.word())) {
      // Words behind a value may be CONFIG, unless it was named before.
      const bool configured = !out.config.empty() || (!kept.empty() && kept.front()[0] != '-');
      read_flag(reader, *flag, configured, out);
    } else {
      kept.push_back(reader.word());
      reader.skip();
    }
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
  for (const std::span<const Flag> flags : kAllFlags) {
    for (const Flag& flag : flags) {
      if (flag.name.starts_with("--")) out.emplace_back(flag.name);
    }
  }
  return out;
}

std::string foreign_flags_help() {
  std::string out =
      "Flags of DeepSpeed, DeepSpeed-Chat, Hugging Face and Megatron-LM set the corresponding "
      "keys:";
  std::string line = "\n ";
  const auto add = [&](const Flag& flag) {
    const bool told =
        flag.kind == Kind::Told || flag.kind == Kind::ToldValue || flag.kind == Kind::ToldSwitch;
    if (flag.kind == Kind::Refused || told) return;
    if (line.size() + flag.name.size() > 96) {
      out += line;
      line = "\n ";
    }
    line += " ";
    line += flag.name;
  };
  for (const std::span<const Flag> flags : kAllFlags)
    std::for_each(flags.begin(), flags.end(), add);
  return out + line;
}

}  // namespace tessera::interop

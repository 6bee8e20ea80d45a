// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/option_values.h"

#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/interop/deepspeed/chat_flags.h"
#include "tessera/interop/foreign_keys.h"
#include "tessera/interop/megatron/flags.h"
#include "tessera/interop/monitor_flags.h"

namespace tessera::interop {
namespace {

using namespace foreign_keys;

bool is_switch(Form form) {
  return form == Form::Switch || form == Form::Off || form == Form::Stage || form == Form::Zero ||
         form == Form::Ema || form == Form::Questions;
}

// DeepSpeed-Chat's decay of the average of the actor's weights.
constexpr double kChatEma = 0.992;

// The value of a switch that is on.
json::Value switched(Form form, bool on) {
  if (form == Form::Zero) return json::Value::integer(0);
  if (form == Form::Ema) return json::Value::number(kChatEma);
  if (form == Form::Questions) return json::Value::string("questions");
  if (form == Form::Stage) return json::Value::integer(on ? 1 : 0);
  return json::Value::boolean(form == Form::Off ? !on : on);
}

std::optional<bool> truth(std::string_view word) {
  const std::string lower = text::lower(word);
  if (lower == "true" || lower == "1") return true;
  if (lower == "false" || lower == "0") return false;
  return std::nullopt;
}

// JSON's numbers, and Python's ".01" and "1.".
json::Value number(const std::string& flag, const std::string& text) {
  const std::string word(text::trim(text));
  try {
    json::Value out = json::parse(word, flag);
    if (out.is_number()) return out;
  } catch (const Error&) {
    // tried again below
  }
  const std::size_t sign = word.starts_with('+') ? 1 : 0;
  double value = 0;
  const auto [end, error] = std::from_chars(word.data() + sign, word.data() + word.size(), value);
  const bool whole = error == std::errc() && end == word.data() + word.size();
  if (whole && std::isfinite(value)) return json::Value::number(value);
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

json::Value json_or_text(const std::string& flag, const std::string& text) {
  try {
    return json::parse(text, flag);
  } catch (const Error&) {
    return json::Value::string(text);
  }
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

bool is_optional_config(const Option& option) {
  return option.form == Form::Config &&
         option.names.front().find("config") == std::string_view::npos;
}

// Forms whose option may have several values.
bool takes_many(Form form) {
  return form == Form::DataPaths || form == Form::Many;
}

void set_switch(const std::string& typed,
                const Option& option,
                const std::vector<std::string>& values,
                ForeignFlags& out) {
  const auto on = values.empty() ? std::optional(true) : truth(values.front());
  TESSERA_REQUIRE(on.has_value(), Config, fmt::format("{}: expected true or false", typed), "");
  const bool only_on =
      option.form == Form::Zero || option.form == Form::Ema || option.form == Form::Questions;
  if (*on || !only_on)
    out.settings.push_back({typed, std::string(option.key), switched(option.form, *on)});
}

}  // namespace

bool OptionWords::belongs(const std::string& word, Form form) {
  if (is_switch(form)) return truth(word).has_value();
  const bool negative =
      word.size() > 1 && word[0] == '-' && (word[1] == '.' || (word[1] >= '0' && word[1] <= '9'));
  return word.empty() || word[0] != '-' || negative;
}

std::vector<std::string> OptionWords::take(const Option& option, bool several) {
  const std::string word = words_[at_++];
  const std::size_t equals = word.find('=');
  if (equals != std::string::npos && word.starts_with('-')) return {word.substr(equals + 1)};
  std::vector<std::string> out;
  if (option.form == Form::Nothing) return out;
  while (!done() && belongs(words_[at_], option.form)) {
    out.push_back(words_[at_++]);
    if (!several || !takes_many(option.form)) break;
  }
  return out;
}

void set_option(const std::string& typed,
                const Option& option,
                const std::vector<std::string>& values,
                ForeignFlags& out) {
  if (option.kind == OptionClass::Same) {
    TESSERA_REQUIRE(is_switch(option.form) || option.form == Form::Nothing ||
                        option.form == Form::Many || !values.empty(),
                    Config,
                    typed + ": the value is missing",
                    "see: tessera train --help");
    out.notes.push_back(fmt::format("{} has no effect here: {}", typed, option.note));
    return;
  }
  if (is_optional_config(option)) {
    return read_config_flag(
        typed, values.empty() ? std::nullopt : std::optional(values.front()), out);
  }
  if (is_switch(option.form)) return set_switch(typed, option, values, out);
  TESSERA_REQUIRE(
      !values.empty(), Config, typed + ": the value is missing", "see: tessera train --help");
  const std::string& value = values.front();
  const std::string key(option.key);
  switch (option.form) {
    case Form::Rank:
      TESSERA_REQUIRE(number(typed, value).as_integer().has_value(),
                      Config,
                      fmt::format("{} {}: expected an integer", typed, value),
                      "launchers set it by themselves: remove it");
      return;
    case Form::One:
      TESSERA_REQUIRE(value == key,
                      Unsupported,
                      fmt::format("not built yet: {} {}, several hosts", typed, value),
                      std::string(kNoHosts));
      return;
    case Form::Config:
      return read_config_flag(typed, value, out);
    case Form::LoraRank:
      return add_lora_rank(typed, key, value, out);
    case Form::Dtype:
      return add_dtype(typed, value, out);
    case Form::DataPaths:
      return add_data_paths(typed, key, values, out);
    case Form::Many: {
      json::Value list = json::Value::array();
      for (const std::string& one : values)
        list.push_back(json::Value::string(one));
      out.settings.push_back({typed, key, std::move(list)});
      return;
    }
    case Form::Object:
      out.settings.push_back({typed, key, object(typed, value)});
      return;
    case Form::Json:
      out.settings.push_back({typed, key, json_or_text(typed, value)});
      return;
    case Form::Names:
      out.settings.push_back({typed, key, names_in(typed, value)});
      return;
    case Form::ReportTo:
      return add_report_to(typed, value, out);
    case Form::BoardFolder:
      return add_board_folder(typed, value, key == "on", out);
    case Form::WandbProject:
      return add_wandb_project(typed, value, out);
    case Form::MegatronRate:
      return add_megatron_rate(typed, key, value, out);
    case Form::Vocabulary:
      out.settings.push_back({typed, "tokenizer.type", json::Value::string("gpt2")});
      break;
    case Form::Backend:
      return read_backend(typed, value, out);
    case Form::Split:
      return add_split(typed, value, out);
    case Form::Sharded:
      return add_sharded(typed, value, out);
    case Form::RunName:
      return add_run_name(typed, value, out);
    case Form::LoraModules:
      out.settings.push_back({typed, key, json::Value::string(names_without(value))});
      return;
    default:
      break;
  }
  const bool text =
      option.form == Form::Text || option.form == Form::Vocabulary || option.form == Form::Value;
  json::Value read = text ? json::Value::string(value) : number(typed, value);
  // Hugging Face's notation for "not given".
  if (option.names.front() == "max_steps" && read.as_double() < 0) return;
  out.settings.push_back({typed,
                          option.form == Form::Beta ? fmt::format("{}{}", kBetas, option.key) : key,
                          std::move(read)});
}

}  // namespace tessera::interop

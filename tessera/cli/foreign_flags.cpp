// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/foreign_flags.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/planner/overrides.h"

namespace tessera::cli {
namespace {

enum class Kind : std::uint8_t { Number, Text, Switch, Config, Ignored };

struct Flag {
  std::string_view name;
  Kind kind;
  std::string_view key;
};
constexpr std::string_view kWarmup = "warmup";  // resolved when the schedule is known
constexpr std::array<Flag, 16> kFlags = {{
    {"--deepspeed", Kind::Config, ""},
    {"--deepspeed_config", Kind::Config, ""},
    {"--local_rank", Kind::Ignored, ""},
    {"--per_device_train_batch_size", Kind::Number, "train_micro_batch_size_per_gpu"},
    {"--learning_rate", Kind::Number, "optimizer.lr"},
    {"--gradient_accumulation_steps", Kind::Number, "gradient_accumulation_steps"},
    {"--num_train_epochs", Kind::Number, "trainer.epochs"},
    {"--max_steps", Kind::Number, "trainer.max_steps"},
    {"--output_dir", Kind::Text, "run.dir"},
    {"--save_steps", Kind::Number, "checkpoint.every"},
    {"--warmup_steps", Kind::Number, kWarmup},
    {"--weight_decay", Kind::Number, "optimizer.weight_decay"},
    {"--seed", Kind::Number, "trainer.seed"},
    {"--bf16", Kind::Switch, "bf16.enabled"},
    {"--fp16", Kind::Switch, "fp16.enabled"},
    {"--max_grad_norm", Kind::Number, "gradient_clipping"},
}};

const Flag* find_flag(std::string_view word) {
  if (word.substr(0, 2) != "--") return nullptr;
  std::string name(word.substr(0, word.find('=')));
  std::replace(name.begin() + 2, name.end(), '-', '_');
  const auto it = std::find_if(
      kFlags.begin(), kFlags.end(), [&](const Flag& flag) { return flag.name == name; });
  return it == kFlags.end() ? nullptr : it;
}

std::optional<bool> truth(std::string_view word) {
  const std::string lower = text::lower(word);
  if (lower == "true" || lower == "1") return true;
  if (lower == "false" || lower == "0") return false;
  return std::nullopt;
}

// One flag at words[at], its value inside of the word or in the next one. Advances past both.
class Reader {
 public:
  explicit Reader(const std::vector<std::string>& words) : words_(words) {}

  [[nodiscard]] bool done() const { return at_ >= words_.size(); }
  [[nodiscard]] const std::string& word() const { return words_[at_]; }
  void skip() { ++at_; }

  // The value of the flag here, if there is one; a following flag is none.
  std::optional<std::string> value(Kind kind) {
    const std::string word = words_[at_++];
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) return word.substr(equals + 1);
    if (done() || !belongs(words_[at_], kind)) return std::nullopt;
    return words_[at_++];
  }

 private:
  static bool belongs(const std::string& word, Kind kind) {
    if (kind == Kind::Switch) return truth(word).has_value();
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
    // told below, in the words of a command line
  }
  throw Error(
      Error::Kind::Config, fmt::format("{}: expected a number, found \"{}\"", flag, text), "");
}

void read_flag(Reader& reader, const Flag& flag, ForeignFlags& out) {
  const std::string typed = reader.word().substr(0, reader.word().find('='));
  const std::optional<std::string> value = reader.value(flag.kind);
  if (flag.kind == Kind::Switch) {
    const auto on = value ? truth(*value) : std::optional(true);
    TESSERA_REQUIRE(on.has_value(), Config, fmt::format("{}: expected true or false", typed), "");
    out.settings.push_back({typed, std::string(flag.key), json::Value::boolean(*on)});
    return;
  }
  // DeepSpeed's own launcher writes a bare --deepspeed beside --deepspeed_config.
  if (!value && flag.name == "--deepspeed") return;
  TESSERA_REQUIRE(
      value.has_value(), Config, typed + ": the value is missing", "see: tessera train --help");
  if (flag.kind == Kind::Ignored) return;
  if (flag.kind == Kind::Config) {
    out.config = *value;
    return;
  }
  json::Value read =
      flag.kind == Kind::Number ? number(typed, *value) : json::Value::string(*value);
  // Hugging Face's word for "not given".
  if (flag.name == "--max_steps" && read.as_double() < 0) return;
  out.settings.push_back({typed, std::string(flag.key), std::move(read)});
}

std::string warmup_key(json::Value& source) {
  json::Value* scheduler = source.find("scheduler");
  const json::Value* type = scheduler == nullptr ? nullptr : scheduler->find("type");
  if (type == nullptr || !type->is_string()) {
    planner::set_key(source, "scheduler.type", json::Value::string("linear"), "--warmup_steps");
    return "scheduler.num_warmup_steps";
  }
  // DeepSpeed's names begin with Warmup, Hugging Face's are in lower case.
  const std::string& name = type->as_string();
  const bool deepspeed = !name.empty() && text::lower(name).substr(0, 6) == "warmup";
  return deepspeed ? "scheduler.warmup_num_steps" : "scheduler.num_warmup_steps";
}

}  // namespace

ForeignFlags take_foreign_flags(std::vector<std::string>& words) {
  ForeignFlags out;
  std::vector<std::string> kept;
  Reader reader(words);
  while (!reader.done()) {
    if (const Flag* flag = find_flag(reader.word())) {
      read_flag(reader, *flag, out);
    } else {
      kept.push_back(reader.word());
      reader.skip();
    }
  }
  words = std::move(kept);
  return out;
}

void apply(const ForeignFlags& flags, json::Value& source) {
  for (const ForeignFlags::Setting& setting : flags.settings) {
    const std::string key = setting.key == kWarmup ? warmup_key(source) : setting.key;
    planner::set_key(source, key, setting.value, setting.flag);
  }
}

std::string foreign_flags_help() {
  std::string out = "Flags of DeepSpeed and Hugging Face set the key of the same meaning:";
  std::string line = "\n ";
  for (const Flag& flag : kFlags) {
    if (line.size() + flag.name.size() > 96) {
      out += line;
      line = "\n ";
    }
    line += " ";
    line += flag.name;
  }
  return out + line;
}

}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/three_steps.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/config/overrides.h"
#include "tessera/rlhf/record_parts.h"

namespace tessera::rlhf {
namespace {

/// Returns `base` with the members of `more`, which take precedence, merged object by object.
json::Value merged_over(json::Value base, const json::Value& more) {
  if (!base.is_object() || !more.is_object()) return more;
  for (const auto& [key, value] : more.members()) {
    json::Value* const found = base.find(key);
    json::Value whole = found == nullptr ? value : merged_over(*found, value);
    base[key] = std::move(whole);
  }
  return base;
}

/// The seed of DeepSpeed-Chat's scripts, which divides the records unless common.trainer.seed does.
constexpr std::int64_t kSplitSeed = 1234;

/// Returns the proportions of "split", or nothing.
std::vector<double> read_split(const json::Value& source) {
  std::vector<double> out;
  const json::Value* const split = source.find("split");
  if (split == nullptr) return out;
  double whole = 0;
  bool right = split->items().size() == kRlhfSteps.size();
  for (const json::Value& part : split->items()) {
    right = right && part.is_number() && part.as_double() >= 0;
    if (right) whole += out.emplace_back(part.as_double());
  }
  TESSERA_REQUIRE(right && whole > 0 && std::isfinite(whole),
                  Config,
                  fmt::format("\"split\" is {}", split->dump()),
                  "give a number for each step that is not below 0: [2, 4, 4]");
  TESSERA_REQUIRE(find_in(source, {"common", "data", "train"}) != nullptr,
                  Config,
                  "\"split\" divides the records of common.data.train, and there are none",
                  "name them there, or remove \"split\"");
  return out;
}

void set_unless_given(json::Value& source, const char* path, json::Value value) {
  json::Value* at = &source;
  std::string rest = path;
  for (std::size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    at = at->find(rest.substr(0, dot));
    if (at == nullptr || !at->is_object()) break;
    rest = rest.substr(dot + 1);
  }
  if (at != nullptr && at->is_object() && at->find(rest) != nullptr) return;
  config::set_key(source, path, std::move(value), "tessera rlhf");
}

/// Lets a reward model compare scores as DeepSpeed-Chat does, unless options are given that only
/// the comparison of last scores has.
void set_comparison(json::Value& step) {
  const json::Value* const task = find_in(step, {"task"});
  if (!task->is_string() || task->as_string() != "reward") return;
  for (const char* key : {"margin", "centering"}) {
    if (find_in(step, {"reward", key}) != nullptr) return;
  }
  set_unless_given(step, "reward.compare", json::Value::string("tokens"));
}

}  // namespace

const json::Value* find_in(const json::Value& source, std::initializer_list<const char*> path) {
  const json::Value* at = &source;
  for (const char* key : path)
    at = at != nullptr && at->is_object() ? at->find(key) : nullptr;
  return at;
}

void check_steps(const json::Value& source, const std::string& name) {
  const auto refuse = [&](const json::Place& place, const std::string& what, std::string fix) {
    throw Error(Error::Kind::Config,
                fmt::format("{}: {}", place.line > 0 ? place.text() : name, what),
                std::move(fix));
  };
  if (!source.is_object())
    refuse(source.place, "the configuration is not an object", "write {...}");
  for (const auto& [key, value] : source.members()) {
    const bool known = key == "dir" || key == "common" || key == "sft" || key == "reward" ||
                       key == "rl" || key == "split" || key == "sft_only";
    if (!known) {
      refuse(value.key_place,
             fmt::format("unknown key \"{}\"", key),
             "the keys are dir, common, sft, reward, rl, split and sft_only; put those of a "
             "training into sft, reward, rl or common");
    }
    const bool right = key == "dir"        ? value.is_string()
                       : key == "split"    ? value.is_array()
                       : key == "sft_only" ? value.is_array() || value.is_string()
                                           : value.is_object();
    if (!right) refuse(value.place, fmt::format("\"{}\" is {}", key, value.type_name()), "");
  }
  if (source.find("dir") == nullptr)
    refuse(source.place, "\"dir\" is missing", "name the folder of the three runs: \"runs/chat\"");
  for (const RlhfStep& step : kRlhfSteps) {
    if (source.find(step.name) == nullptr)
      refuse(
          source.place, fmt::format("the step \"{}\" is missing", step.name), "write it as {...}");
  }
}

void divide_records(json::Value& source, const std::filesystem::path& folder) {
  const std::vector<double> proportions = read_split(source);
  if (proportions.empty()) return;
  const json::Value& train = *find_in(source, {"common", "data", "train"});
  std::vector<std::string> names;
  if (train.is_string()) names.push_back(train.as_string());
  for (const json::Value& name : train.is_array() ? train.items() : std::vector<json::Value>()) {
    if (name.is_string()) names.push_back(name.as_string());
  }
  const json::Value* const seed = find_in(source, {"common", "trainer", "seed"});
  const auto parts =
      write_parts(names,
                  proportions,
                  static_cast<std::uint64_t>(
                      seed != nullptr ? seed->as_integer().value_or(kSplitSeed) : kSplitSeed),
                  folder);
  for (std::size_t number = 0; number < kRlhfSteps.size(); ++number) {
    if (find_in(source, {kRlhfSteps[number].name, "data", "train"}) != nullptr) continue;
    TESSERA_REQUIRE(proportions[number] > 0,
                    Config,
                    fmt::format("\"split\" leaves no records for the step {}, which names none",
                                kRlhfSteps[number].name),
                    fmt::format("name them in {}.data.train", kRlhfSteps[number].name));
    config::set_key(source,
                    std::string(kRlhfSteps[number].name) + ".data.train",
                    json::Value::string(parts[number].string()),
                    "split");
  }
}

json::Value config_of_step(const json::Value& source, std::size_t number) {
  const RlhfStep& step = kRlhfSteps[number];
  const std::filesystem::path dir = source.find("dir")->as_string();
  const json::Value* const common = source.find("common");
  json::Value out =
      merged_over(common == nullptr ? json::Value::object() : *common, *source.find(step.name));
  config::set_key(
      out, "run.dir", json::Value::string((dir / step.folder).string()), "tessera rlhf");
  set_unless_given(out, "task", json::Value::string(step.task));
  if (number == 0) return out;
  // The first step starts from another model than the others.
  const json::Value* const own = source.find(step.name)->find("model");
  if (own == nullptr || own->find("from") == nullptr) {
    json::Value model =
        json::Value::object({{"from", json::Value::string((dir / kRlhfSteps[0].folder).string())}});
    out["model"] = own == nullptr ? std::move(model) : merged_over(std::move(model), *own);
  }
  if (number == 1) set_comparison(out);
  if (number != 2) return out;
  const std::string judge = (dir / kRlhfSteps[1].folder).string();
  set_unless_given(
      out,
      "rl.rewards",
      json::Value::array({json::Value::object(
          {{"type", json::Value::string("model")}, {"from", json::Value::string(judge)}})}));
  const json::Value& rl = *out.find("rl");
  const json::Value *preset = rl.find("preset"), *algorithm = rl.find("algorithm");
  if (preset == nullptr && algorithm == nullptr)
    config::set_key(out, "rl.preset", json::Value::string("dschat:ppo"), "tessera rlhf");
  const json::Value* const named =
      out.find("rl")->find(preset != nullptr || algorithm == nullptr ? "preset" : "algorithm");
  // DeepSpeed-Chat's critic starts from the reward model.
  if (named->is_string() && named->as_string().ends_with("ppo"))
    set_unless_given(out, "rl.critic.from", json::Value::string(judge));
  return out;
}

}  // namespace tessera::rlhf

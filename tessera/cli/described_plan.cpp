// SPDX-License-Identifier: Apache-2.0
// tessera plan CONFIG --device NAME: the memory, time and price of a training on a machine that
// need not be here.
#include "tessera/cli/described_plan.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/command.h"
#include "tessera/cli/flags_alone.h"
#include "tessera/cli/merged_config.h"
#include "tessera/cli/ranks.h"
#include "tessera/interop/foreign_flags.h"
#include "tessera/launch/launch.h"
#include "tessera/predict/many_ranks.h"
#include "tessera/tune/outlook.h"

namespace tessera::cli {
namespace {

struct DescribedFlags {
  std::string config, model, data;
  std::optional<std::int64_t> ranks;
  std::optional<double> tokens;
  std::vector<std::string> set;
  bool why = false;
  MachineFlags machine;
  Common common;
};

bool parse(DescribedFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "plan",
      "Shows the memory, the time of a step, and the price of a training on a machine that is "
      "described in a file. Nothing is started, no data is read, and the plan need not fit here.",
      {"tessera plan my.json -n 64 --device h100 --hosts 8 --network ib400 --price 2.5",
       "tessera plan my.json -n 8 --device a100-80gb --tokens 300e9 --why",
       "tessera plan my.json -n 2 --device here        as measured by tessera bench machine",
       "tessera plan my.json -n 8 --device my-machine.json --json"});
  arguments.positional("CONFIG", &words.config, "JSON file; comments are allowed", false);
  arguments.option("--model", &words.model, "Preset, model folder or .gguf file");
  arguments.option("--data", &words.data, "Training data");
  arguments.option(kRanksOption, &words.ranks, "Ranks, on all hosts together [1]");
  words.machine.declare(arguments);
  arguments.option("--tokens", &words.tokens, "Tokens to train on, for days and price");
  arguments.option(
      "--set", &words.set, "KEY=VALUE: overrides a key of CONFIG; the value is JSON or a string");
  arguments.flag("--why",
                 words.why,
                 "Show where the time of a step goes, and what the next changes would bring");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

/// Sets run.device to a GPU, unless the configuration names a device, if the configuration keeps
/// something in the memory of a GPU's host. The plan of a described GPU then counts it there.
void plan_for_a_gpu(json::Value& source) {
  const auto at = [&](std::initializer_list<const char*> path) {
    const json::Value* found = &source;
    for (const char* const key : path) {
      if (found != nullptr) found = found->is_object() ? found->find(key) : nullptr;
    }
    return found;
  };
  const auto text_at = [&](std::initializer_list<const char*> path) -> std::string {
    const json::Value* const found = at(path);
    return found != nullptr && found->is_string() ? found->as_string() : "";
  };
  const std::string device = text_at({"run", "device"});
  if (!device.empty() && device != "auto") return;
  const json::Value* const inputs = at({"activation_checkpointing", "cpu_checkpointing"});
  if (text_at({"zero_optimization", "offload_optimizer", "device"}) == "cpu" ||
      text_at({"zero_optimization", "offload_param", "device"}) == "cpu" ||
      text_at({"activation_checkpointing", "offload", "device"}) == "cpu" ||
      (inputs != nullptr && inputs->dump() == "true"))
    source["run"]["device"] = json::Value::string("cuda");
}

}  // namespace

void MachineFlags::declare(Arguments& arguments) {
  arguments.option("--device",
                   &device,
                   "A machine of share/machines (h100, a100-80gb, ...), a file of your own, or "
                   "here: as measured by tessera bench machine [here]");
  arguments.option(
      "--hosts", &hosts, "Hosts among which the ranks are divided [as the machine says]");
  arguments.option("--network",
                   &network,
                   "Link between hosts: ib400, roce1600, eth25, 400G, ... [the machine's]");
  arguments.option("--price", &price, "Price of a rank for an hour [the machine's]");
}

predict::DescribedMachine MachineFlags::machine(int ranks) const {
  predict::DescribedMachine out = predict::find_machine(device.empty() ? "here" : device);
  if (hosts) {
    TESSERA_REQUIRE(
        *hosts >= 1 && *hosts <= ranks && ranks % *hosts == 0,
        Config,
        fmt::format("--hosts {}: {} ranks cannot be divided evenly among them", *hosts, ranks),
        "give a number of hosts that divides the ranks");
    out.rates.host_ranks = static_cast<int>(ranks / *hosts);
  }
  if (out.cores > 0) {  // the ranks share the memory of their host
    const int shared = out.rates.host_ranks > 0 ? std::min(out.rates.host_ranks, ranks) : ranks;
    const double host =
        is_here() ? static_cast<double>(launch::available_memory()) : out.memory_bytes;
    out.memory_bytes = host / std::max(shared, 1);
  }
  if (!network.empty()) out = predict::with_network(std::move(out), predict::find_network(network));
  if (price) {
    TESSERA_REQUIRE(*price >= 0, Config, fmt::format("--price {}: expected a price", *price), "");
    out.price_per_hour = *price;
  }
  return out;
}

interop::ForeignFlags take_foreign_flags_but_machine(std::vector<std::string>& words) {
  constexpr std::string_view kOwn[] = {"--device", "--hosts", "--network", "--price"};
  std::vector<std::string> own, others;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view name = std::string_view(words[i]).substr(0, words[i].find('='));
    const bool mine = std::ranges::find(kOwn, name) != std::end(kOwn);
    (mine ? own : others).push_back(words[i]);
    if (mine && name.size() == words[i].size() && i + 1 < words.size()) own.push_back(words[++i]);
  }
  interop::ForeignFlags out = interop::take_foreign_flags(others);
  words = std::move(others);
  words.insert(words.end(), own.begin(), own.end());
  return out;
}

bool describes_machine(const std::vector<std::string>& line) {
  constexpr std::string_view kFlags[] = {
      "--device", "--hosts", "--network", "--price", "--why", "--tokens"};
  return std::ranges::any_of(line, [&](const std::string& word) {
    const std::string_view name = std::string_view(word).substr(0, word.find('='));
    return std::ranges::find(kFlags, name) != std::end(kFlags);
  });
}

int described_plan(const std::vector<std::string>& line) {
  std::vector<std::string> rest = line;
  interop::ForeignFlags foreign = take_foreign_flags_but_machine(rest);
  DescribedFlags words;
  if (!parse(words, rest)) return kExitOk;
  for (const std::string& note : foreign.notes)
    log::warn(note);
  const std::string path = interop::config_of(words.config, foreign);
  json::Value source = path.empty() ? configuration_from_flags(words.model, words.data, foreign)
                                    : read_configs(words.config, foreign);
  add_model_and_data(words.model, words.data, foreign);
  for (const std::string& note : apply(foreign, source, words.set))
    log::warn(note);
  const auto ranks = static_cast<int>(
      std::clamp<std::int64_t>(words.ranks.value_or(1), 0, predict::kMostPlannedRanks + 1));
  const predict::DescribedMachine machine = words.machine.machine(ranks);
  const std::string name = path.empty() ? name_from_flags(words.model) : path;
  if (machine.cores == 0) plan_for_a_gpu(source);
  const planner::Plan plan = predict::plan_of_many(source, ranks, name);
  const tune::Outlook outlook = tune::outlook_of(plan, machine, words.tokens);
  if (words.common.json) {
    std::printf("%s\n", tune::outlook_json(outlook, plan, machine).dump(2).c_str());
    return kExitOk;
  }
  for (const std::string& text : tune::outlook_lines(outlook, plan, machine))
    std::printf("%s\n", text.c_str());
  if (words.why) {
    for (const std::string& text : tune::why_lines(outlook, source, plan, machine))
      std::printf("%s\n", text.c_str());
  }
  return kExitOk;
}

}  // namespace tessera::cli

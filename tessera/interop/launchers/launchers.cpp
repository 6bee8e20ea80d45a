// SPDX-License-Identifier: Apache-2.0
// Launchers whose commands are read: how many ranks they start, and where.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/option_table.h"
#include "tessera/interop/option_values.h"
#include "tessera/interop/yaml.h"

namespace tessera::interop {
namespace {

constexpr std::string_view kRows =
#include "tessera/interop/launchers/options.inc"
    ;
const bool kTables = add_option_tables("launchers", kRows);

std::optional<std::int64_t> count_in(const ForeignFlags::Setting* setting) {
  if (setting == nullptr) return std::nullopt;
  if (setting->value.is_number()) return setting->value.as_integer();
  try {
    const json::Value value = json::parse(setting->value.as_string(), setting->flag);
    if (value.is_number()) return value.as_integer();
  } catch (const Error&) {
    // not a number: the caller decides
  }
  return std::nullopt;
}

// Hands a flag on to the choice of hosts, by the name that it has there.
void hand_on(Meaning& meaning, std::string_view key, const std::string& name) {
  const ForeignFlags::Setting* const setting = meaning.given(key);
  if (setting == nullptr) return;
  const std::string value =
      setting->value.is_string() ? setting->value.as_string() : setting->value.dump();
  meaning.flags.settings.push_back({name, "@host", json::Value::string(value)});
}

// Sets the number of ranks of a host, and on several hosts where they meet.
void set_ranks_and_hosts(Meaning& meaning) {
  const ForeignFlags::Setting* const ranks = meaning.given("@ranks");
  if (ranks != nullptr) {
    meaning.ranks = count_in(ranks);
    const std::string word = meaning.text("@ranks");
    if (!meaning.ranks && (word == "gpu" || word == "cpu" || word == "auto")) {
      meaning.ranks = 1;
    } else if (!meaning.ranks || *meaning.ranks < 1) {
      meaning.refuse(fmt::format("{} {}: expected a number of ranks", ranks->flag, word), "8");
    }
  }
  const std::string nodes = meaning.text("@nodes", "1");
  if (nodes == "1" || nodes == "1:1") return;
  hand_on(meaning, "@nodes", "--nnodes");
  hand_on(meaning, "@node_rank", "--node_rank");
  hand_on(meaning, "@master_addr", "--master_addr");
  hand_on(meaning, "@master_port", "--master_port");
  hand_on(meaning, "@endpoint", "--rdzv_endpoint");
}

// Slurm and MPI count all ranks, or those of a node.
void read_cluster(Meaning& meaning) {
  const std::int64_t nodes = count_in(meaning.given("@nodes")).value_or(1);
  if (nodes > 1) {
    meaning.refuse(fmt::format("{} {}: several hosts", meaning.given("@nodes")->flag, nodes),
                   "let the launcher start tessera: srun ... tessera train my.json");
  }
  const auto of_node = count_in(meaning.given("@ranks_of_node"));
  meaning.ranks = count_in(meaning.given("@ranks"));
  if (!meaning.ranks && of_node) meaning.ranks = *of_node * nodes;
}

void set_precision(Meaning& meaning) {
  const ForeignFlags::Setting* const setting = meaning.given("@mixed_precision");
  if (setting == nullptr) return;
  const std::string word = text::lower(meaning.text("@mixed_precision"));
  if (word == "bf16" || word == "fp16") {
    meaning.flags.settings.push_back(
        {setting->flag, word + ".enabled", json::Value::boolean(true)});
  } else if (word != "no") {
    meaning.refuse(fmt::format("{} {} is not supported", setting->flag, word),
                   "use bf16, fp16 or no");
  }
}

std::optional<std::int64_t> stage_of(std::string_view strategy) {
  const std::string word = text::lower(strategy);
  if (word == "full_shard" || word == "1" || word == "true" || word == "hybrid_shard" ||
      word == "4")
    return 3;
  if (word == "shard_grad_op" || word == "2" || word == "false" || word == "hybrid_shard_zero2" ||
      word == "5")
    return 2;
  if (word == "no_shard" || word == "3") return 0;
  return std::nullopt;
}

void set_fsdp_stage(Meaning& meaning, const std::string& flag, const std::string& strategy) {
  const auto stage = stage_of(strategy);
  if (!stage) {
    meaning.refuse(fmt::format("{} {} is not supported", flag, strategy),
                   "use FULL_SHARD, SHARD_GRAD_OP or NO_SHARD");
    return;
  }
  meaning.flags.settings.push_back({flag, "zero_optimization.stage", json::Value::integer(*stage)});
}

// The members of deepspeed_config in a file of accelerate.
void read_deepspeed_part(Meaning& meaning, const json::Value& part) {
  static const OptionTable& table = option_table("launchers/accelerate");
  for (const auto& [key, value] : part.members()) {
    const std::string typed = fmt::format("{}: {}", value.key_place.text(), key);
    const Option* const option = table.find(key);
    if (value.is_null() || (value.is_string() && value.as_string() == "none")) continue;
    if (option == nullptr || option->kind == OptionClass::Refused) {
      meaning.refuse(fmt::format("{} is not supported", typed),
                     option == nullptr ? "remove it" : std::string(option->note));
    } else if (option->kind == OptionClass::Mapped) {
      set_option(
          typed, *option, {value.is_string() ? value.as_string() : value.dump()}, meaning.flags);
    }
  }
}

std::string text_of(const json::Value* value) {
  if (value == nullptr || value->is_null()) return "";
  return value->is_string() ? value->as_string() : value->dump();
}

void read_fsdp_part(Meaning& meaning, const json::Value& part) {
  const json::Value* const strategy = part.find("fsdp_sharding_strategy");
  const json::Value* const reshard = part.find("fsdp_reshard_after_forward");
  const json::Value* const chosen = strategy != nullptr ? strategy : reshard;
  const std::string flag =
      chosen == nullptr ? part.key_place.text() + ": fsdp_config" : chosen->key_place.text();
  set_fsdp_stage(meaning, flag, chosen == nullptr ? "full_shard" : text_of(chosen));
  const json::Value* const recompute = part.find("fsdp_activation_checkpointing");
  if (recompute != nullptr && recompute->is_bool() && recompute->as_bool()) {
    meaning.flags.settings.push_back({recompute->key_place.text(),
                                      "activation_checkpointing.enabled",
                                      json::Value::boolean(true)});
  }
}

// The members of parallelism_config in a file of accelerate: how the ranks divide the model, the
// tokens and the states.
void read_parallelism_part(Meaning& meaning, const json::Value& part) {
  static const OptionTable& table = option_table("launchers/accelerate_parallelism");
  for (const auto& [key, value] : part.members()) {
    const std::string typed = fmt::format("{}: {}", value.key_place.text(), key);
    const Option* const option = table.find(key);
    if (value.is_null() || (option != nullptr && option->kind == OptionClass::Same)) continue;
    const std::string word = text_of(&value);
    if (option == nullptr) {
      meaning.refuse(fmt::format("{} is not supported", typed), "remove it");
    } else if (option->kind == OptionClass::Refused) {
      if (word != option->initial && word != "1")
        meaning.refuse(fmt::format("{} is not supported", typed), std::string(option->note));
    } else if (word != "1") {
      set_option(typed, *option, {word}, meaning.flags);
    }
  }
  const ForeignFlags::Setting* const ulysses = meaning.given("@sp_size");
  if (ulysses != nullptr && meaning.given("parallel.context.size") != nullptr) {
    meaning.refuse(fmt::format("{} together with parallelism_config_cp_size", ulysses->flag),
                   "divide the tokens by one of them");
  } else if (ulysses != nullptr) {
    const ForeignFlags::Setting copy = *ulysses;
    meaning.flags.settings.push_back({copy.flag, "parallel.context.size", copy.value});
    meaning.flags.settings.push_back(
        {copy.flag, "parallel.context.mode", json::Value::string("ulysses")});
  }
  const ForeignFlags::Setting* const shards = meaning.given("@dp_shard");
  const bool stage = meaning.given("zero_optimization.stage") != nullptr;
  if (shards != nullptr && !stage) {
    const ForeignFlags::Setting copy = *shards;
    meaning.flags.settings.push_back(
        {copy.flag, "zero_optimization.stage", json::Value::integer(3)});
  }
}

// Reads a file of `accelerate config` below the flags, which take precedence.
void read_accelerate_file(Meaning& meaning) {
  const std::string path = meaning.text("@config_file");
  if (path.empty()) return;
  const json::Value settings = read_settings(path);
  TESSERA_REQUIRE(
      settings.is_object(),
      Config,
      fmt::format("{}: expected settings of accelerate, found {}", path, settings.type_name()),
      "");
  const OptionTable& table = option_table("launchers/accelerate_file");
  ForeignFlags of_flags = std::move(meaning.flags);
  meaning.flags = {};
  for (const auto& [key, value] : settings.members()) {
    const std::string typed = fmt::format("{}: {}", value.key_place.text(), key);
    const Option* const option = table.find(key);
    if (value.is_null() || (option != nullptr && option->kind == OptionClass::Same)) continue;
    const bool empty = value.is_object() && value.members().empty();
    if (option == nullptr || (option->kind == OptionClass::Refused && !empty)) {
      meaning.refuse(fmt::format("{} is not supported", typed),
                     option == nullptr ? "remove it" : std::string(option->note));
    } else if (option->form == Form::Json) {
      if (!empty) meaning.flags.settings.push_back({typed, std::string(option->key), value});
    } else {
      set_option(typed, *option, {text_of(&value)}, meaning.flags);
    }
  }
  const std::string type = text::lower(meaning.text("@distributed_type"));
  const ForeignFlags::Setting* const deepspeed = meaning.given("@deepspeed_config");
  const ForeignFlags::Setting* const fsdp = meaning.given("@fsdp_config");
  if (deepspeed != nullptr && fsdp != nullptr && deepspeed->value.is_object() &&
      fsdp->value.is_object()) {
    meaning.refuse(fmt::format("{} has settings of DeepSpeed and of FSDP at once", path),
                   "keep deepspeed_config or fsdp_config");
  }
  const json::Value deepspeed_part = deepspeed == nullptr ? json::Value() : deepspeed->value;
  const json::Value fsdp_part = fsdp == nullptr ? json::Value() : fsdp->value;
  if (type == "deepspeed" && deepspeed_part.is_object())
    read_deepspeed_part(meaning, deepspeed_part);
  if (type == "fsdp" && fsdp_part.is_object()) read_fsdp_part(meaning, fsdp_part);
  const ForeignFlags::Setting* const parallel = meaning.given("@parallelism_config");
  if (parallel != nullptr && parallel->value.is_object()) {
    const json::Value part = parallel->value;
    read_parallelism_part(meaning, part);
  }
  meaning.flags.settings.insert(
      meaning.flags.settings.end(), of_flags.settings.begin(), of_flags.settings.end());
  if (!of_flags.config.empty()) meaning.flags.config = of_flags.config;
}

void read_accelerate(Meaning& meaning) {
  read_accelerate_file(meaning);
  if (meaning.is_on("@use_fsdp") &&
      (meaning.is_on("@use_deepspeed") || !meaning.flags.config.empty()))
    meaning.refuse("--use_fsdp and --use_deepspeed at once", "keep one of them");
  if (const ForeignFlags::Setting* const strategy = meaning.given("@fsdp_sharding_strategy")) {
    const ForeignFlags::Setting setting = *strategy;
    set_fsdp_stage(meaning, setting.flag, setting.value.as_string());
  } else if (meaning.is_on("@use_fsdp")) {
    set_fsdp_stage(meaning, "--use_fsdp", "full_shard");
  }
  set_precision(meaning);
  set_ranks_and_hosts(meaning);
}

const bool kLaunchers = add_launchers({
    {.name = "python", .table = "launchers/python", .starts_ranks = false},
    {.name = "torchrun", .table = "launchers/torchrun", .rules = set_ranks_and_hosts},
    {.name = "deepspeed", .table = "launchers/deepspeed", .rules = set_ranks_and_hosts},
    {.name = "accelerate launch", .table = "launchers/accelerate", .rules = read_accelerate},
    {.name = "accelerate-launch", .table = "launchers/accelerate", .rules = read_accelerate},
    {.name = "colossalai run", .table = "launchers/colossalai", .rules = set_ranks_and_hosts},
    {.name = "srun", .table = "launchers/srun", .rules = read_cluster},
    {.name = "mpirun", .table = "launchers/mpirun", .rules = read_cluster},
});

}  // namespace
}  // namespace tessera::interop

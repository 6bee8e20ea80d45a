// SPDX-License-Identifier: Apache-2.0
// tessera plan: shows the requirements of a model before a machine exists for it.
#include "tessera/planner/plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/described_plan.h"
#include "tessera/models/family.h"
#include "tessera/models/model_source.h"
#include "tessera/models/presets.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/train_config.h"
#include "tessera/planner/validate.h"
#include "tessera/planner/values.h"
#include "tessera/report/estimators.h"
#include "tessera/tasks/task.h"

namespace tessera::cli {
namespace {

struct PlanFlags {
  std::string estimate, model;
  std::int64_t gpus = 1, nodes = 1;
  std::optional<std::int64_t> total_params, largest_layer_params;
  Common common;
};

bool parse(PlanFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "plan",
      "Shows what a training needs before it starts. With a configuration: everything that `train "
      "--dry-run` shows, with the same flags. With --device: the memory, the time of a step and "
      "the "
      "price on a machine that is described in a file (tessera plan CONFIG --device h100 --help). "
      "With --estimate: DeepSpeed's table of a model's states, and the memory that tessera needs.",
      {"tessera plan my.json -n 4      layout, memory and time of a configuration",
       "tessera plan my.json -n 64 --device h100 --hosts 8 --network ib400 --why",
       "tessera plan --estimate zero3 --model gpt2-xl --num_gpus_per_node 8",
       "tessera plan --estimate zero2 --model path/to/hugging_face_folder --num_nodes 2",
       "tessera plan --estimate zero3 --model my.json --json",
       "tessera plan --estimate zero3 --total-params 2783959040 --largest-layer-params 65798144"});
  arguments.option("--estimate", &words.estimate, "zero2 or zero3");
  arguments.option("--model", &words.model, "Preset, folder of a model, or configuration");
  arguments.option("--num_gpus_per_node,--num-gpus-per-node", &words.gpus, "Ranks per host [1]");
  arguments.option("--num_nodes,--num-nodes", &words.nodes, "Hosts [1]");
  arguments.option("--total_params,--total-params",
                   &words.total_params,
                   "Instead of --model: number of parameters");
  arguments.option("--largest_layer_params,--largest-layer-params",
                   &words.largest_layer_params,
                   "Number of parameters of the largest layer");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

int stage_of(const std::string& estimate) {
  TESSERA_REQUIRE(!estimate.empty(),
                  Config,
                  "tessera plan: a configuration or --estimate is missing",
                  "tessera plan CONFIG, or --estimate zero2 or zero3 with a --model");
  const std::vector<std::string> known = {"zero2", "zero3"};
  const std::string name = text::lower(estimate);
  TESSERA_REQUIRE(std::find(known.begin(), known.end(), name) != known.end(),
                  Config,
                  fmt::format("--estimate {}: expected zero2 or zero3", estimate),
                  text::suggestion(name, known));
  return name.back() - '0';
}

constexpr std::int64_t kMostHosts = 1'000'000;  // and ranks per host
constexpr std::int64_t kMostParams = 1'000'000'000'000'000;

// Checks the numbers that replace a model.
void check_params(const PlanFlags& words, int stage) {
  const std::int64_t total = *words.total_params;
  TESSERA_REQUIRE(total >= 1 && total <= kMostParams,
                  Config,
                  fmt::format("--total-params {}: expected 1 to {}", total, kMostParams),
                  "");
  TESSERA_REQUIRE(stage != 3 || words.largest_layer_params.has_value(),
                  Config,
                  "--estimate zero3 --total-params: --largest-layer-params is missing",
                  "ranks gather one layer at a time: add its parameters, or name a --model");
  const std::int64_t largest = words.largest_layer_params.value_or(1);
  TESSERA_REQUIRE(
      largest >= 1 && largest <= total,
      Config,
      fmt::format(
          "--largest-layer-params {}: expected 1 to {}, which is --total-params", largest, total),
      "");
}

void check(const PlanFlags& words, int stage) {
  for (const auto& [flag, count] :
       {std::pair("--num_gpus_per_node", words.gpus), std::pair("--num_nodes", words.nodes)}) {
    TESSERA_REQUIRE(count >= 1 && count <= kMostHosts,
                    Config,
                    fmt::format("{} {}: expected 1 to {}", flag, count, kMostHosts),
                    "");
  }
  const bool cold = words.total_params.has_value() || words.largest_layer_params.has_value();
  TESSERA_REQUIRE(words.model.empty() || !cold,
                  Config,
                  "--model and --total-params are both given",
                  "name the model, or its number of parameters");
  TESSERA_REQUIRE(!words.model.empty() || words.total_params.has_value(),
                  Config,
                  "tessera plan: --model is missing",
                  "--model gpt2-small, a folder, a configuration, or --total-params 124000000");
  if (words.total_params) check_params(words, stage);
}

const models::Preset* find_preset(const std::string& family, const std::string& name) {
  for (const models::Preset& preset : models::families().get(family).presets) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

/// A task that a family can learn whose models do not continue texts; null for the others.
json::Value task_of_family(const std::string& family) {
  const tasks::ObjectiveTask task =
      tasks::task_of_objective(models::families().get(family).objective);
  if (task.trains.empty()) return {};
  if (task.example.empty()) return json::Value::string(task.trains);
  return json::Value::object(
      {{"type", json::Value::string(task.trains)}, {"params", json::parse(task.example, "task")}});
}

struct Source {
  json::Value config;
  std::optional<models::ModelOptions> folder;  ///< the model of a folder, unchanged
};

// Uses the vocabulary of the published model; if the preset has none, the tokenizer that `tessera
// init` would choose.
json::Value source_of_preset(const std::string& preset, const std::string& family) {
  json::Value out;
  out["model"]["family"] = json::Value::string(family);
  out["model"]["preset"] = json::Value::string(preset);
  const models::Preset* const sizes = find_preset(family, preset);
  const bool small = sizes != nullptr && (sizes->bytes || sizes->vocab_size > 0);
  const char* const tokenizer = small ? "byte" : "gpt2";
  out["tokenizer"]["type"] = json::Value::string(tokenizer);
  return out;
}

Source source_of_folder(const std::string& folder) {
  models::ModelSource source = models::open_model_source(folder);
  json::Value config;
  config["model"] = config::write(source.model);
  std::erase_if(config["model"].members(),
                [](const auto& member) { return member.first == "vocab_size"; });
  return {std::move(config), source.model};
}

// No text is read, so the vocabulary need not be as large as a tokenizer's.
models::Resolved without_tokenizer(const models::ModelOptions& options) {
  config::Problems problems;
  models::Resolved out = models::resolve(options, /*tokenizer_size=*/1, std::nullopt, problems, {});
  problems.raise();
  nn::declare_all(out.model);
  return out;
}

bool is_auto(const json::Value& value) {
  return value.is_string() && value.as_string() == "auto";
}

// Removes values that the command line of a training would set; memory does not depend on them.
void drop_auto(json::Value& config) {
  const auto drop = [](json::Value& object) {
    std::erase_if(object.members(), [](const auto& member) { return is_auto(member.second); });
  };
  drop(config);
  json::Value* const optimizer = config.find("optimizer");
  json::Value* const params =
      optimizer != nullptr && optimizer->is_object() ? optimizer->find("params") : nullptr;
  if (params != nullptr && params->is_object()) drop(*params);
}

json::Value source_of_config(const std::string& file) {
  const json::Value source = read_config(file);
  json::Value out = json::Value::object();
  for (const char* key : {"model",
                          "tokenizer",
                          "optimizer",
                          "activation_checkpointing",
                          "bf16",
                          "fp16",
                          "train_micro_batch_size_per_gpu"}) {
    const json::Value* value = source.find(key);
    if (value != nullptr && !value->is_null()) out[key] = *value;
  }
  const json::Value* data = source.find("data");
  const json::Value* length =
      data != nullptr && data->is_object() ? data->find("sequence_length") : nullptr;
  if (length != nullptr) out["data"]["sequence_length"] = *length;
  drop_auto(out);
  return out;
}

Source source_of(const std::string& model) {
  std::error_code ignored;
  if (std::filesystem::is_directory(model, ignored)) return source_of_folder(model);
  const std::optional<std::string> family = models::family_of_preset(model);
  if (family) return {source_of_preset(model, *family), std::nullopt};
  if (hub::find_model(model)) return source_of_folder(model);
  TESSERA_REQUIRE(names_config(model),
                  Config,
                  fmt::format("--model {}: no such preset, folder or file exists", model),
                  text::suggestion(model, models::all_presets()));
  return {source_of_config(model), std::nullopt};
}

std::int64_t all_ranks(const PlanFlags& words) {
  return words.gpus * words.nodes;
}

// Returns whether a configuration sets the type in which it computes.
bool says_type(const json::Value& source) {
  for (const char* block : {"bf16", "fp16"}) {
    const json::Value* const found = source.find(block);
    const json::Value* const enabled =
        found != nullptr && found->is_object() ? found->find("enabled") : nullptr;
    if (enabled != nullptr && enabled->is_bool()) return true;
  }
  return false;
}

// The plan in DeepSpeed's terms: 16-bit weights unless the configuration sets the type, the stage,
// and as many ranks as there are GPUs, as far as possible.
planner::Plan plan_of(const PlanFlags& words, int stage) {
  auto [source, folder] = source_of(words.model);
  source["data"]["train"] = json::Value::string("any.txt");
  models::spell_out_family(source);
  const json::Value* const model = source.find("model");
  const json::Value* const family =
      model != nullptr && model->is_object() ? model->find("family") : nullptr;
  if (family != nullptr && family->is_string() && models::families().has(family->as_string())) {
    const json::Value task = task_of_family(family->as_string());
    if (!task.is_null()) source["task"] = task;
  }
  if (source.find("train_micro_batch_size_per_gpu") == nullptr)
    source["train_micro_batch_size_per_gpu"] = json::Value::integer(1);
  if (!says_type(source)) source["bf16"]["enabled"] = json::Value::boolean(true);
  source["zero_optimization"]["stage"] = json::Value::integer(stage);
  const auto ranks = static_cast<int>(std::min<std::int64_t>(all_ranks(words), kMostRanks));
  const planner::Plan made = planner::make_plan(source, ranks, words.model);
  const int ranks_of_host = std::max(1, static_cast<int>(ranks / words.nodes));
  const planner::Plan plan = planner::with(
      made, planner::Needs{.beside = 0, .traveling = planner::travel_bytes(made, ranks_of_host)});
  if (!folder) return plan;
  planner::ModelPlan smaller = plan.model();
  smaller.resolved = without_tokenizer(*folder);
  return planner::with(plan, std::move(smaller));
}

std::vector<std::pair<std::string_view, std::int64_t>> parts_of(
    const planner::MemoryEstimate& need) {
  return {{"parameters", need.parameters},
          {"gradients", need.gradients},
          {"optimizer", need.optimizer},
          {"activations", need.activations},
          {"messages", need.messages},
          {"other", need.other},
          {"shared", need.shared}};
}

std::string in_bytes(std::int64_t count) {
  return text::bytes(static_cast<std::uint64_t>(count));
}

std::string ours_text(const planner::Plan& plan) {
  const planner::MemoryEstimate need = planner::estimate_memory(plan);
  std::string out =
      fmt::format("\nIn tessera: stage {}, {} {}, {}, {}, micro-batch {} x {} tokens\n",
                  planner::zero_stage_of(plan),
                  plan.ranks(),
                  plan.ranks() == 1 ? "rank" : "ranks",
                  config::name_of(planner::kCommunicationTypes, planner::working_of(plan)),
                  plan.recipe().optimizer.type,
                  planner::micro_batch_of(plan),
                  text::with_commas(planner::sequence_length_of(plan)));
  const bool known = need.unknown.empty();
  for (const auto& [name, count] : parts_of(need)) {
    if (name != "shared" && (count > 0 || name != "messages") && (known || name != "activations"))
      out += fmt::format("  {:<12} {:>10}\n", name, in_bytes(count));
  }
  if (!known) out += fmt::format("  activations are not predicted: {}\n", need.unknown);
  if (need.shared > 0)
    out += fmt::format("  {:<12} {:>10}\n", "shared by two -", in_bytes(need.shared));
  out += fmt::format("  {:<12} {:>10}{}, all ranks {}\n",
                     "a rank",
                     in_bytes(need.total()),
                     known ? "" : " at least",
                     in_bytes(need.total() * plan.ranks()));
  return out;
}

json::Value ours_json(const planner::Plan& plan) {
  json::Value out;
  const planner::MemoryEstimate need = planner::estimate_memory(plan);
  for (const auto& [name, count] : parts_of(need))
    out[name] = json::Value::integer(count);
  if (!need.unknown.empty()) {
    out["activations"] = json::Value();
    out["why_unknown"] = json::Value::string(need.unknown);
  }
  out["total"] = need.unknown.empty() ? json::Value::integer(need.total()) : json::Value();
  out["ranks"] = json::Value::integer(plan.ranks());
  out["micro_batch"] = json::Value::integer(planner::micro_batch_of(plan));
  out["sequence_length"] = json::Value::integer(planner::sequence_length_of(plan));
  return out;
}

json::Value rows_json(int stage, const report::ModelSize& size, const report::Machines& machines) {
  json::Value out = json::Value::array();
  const auto rows =
      stage == 2 ? report::estimate_zero2(size, machines) : report::estimate_zero3(size, machines);
  for (const report::EstimateRow& row : rows) {
    out.push_back(json::Value::object({{"cpu_bytes", json::Value::integer(row.cpu_bytes)},
                                       {"gpu_bytes", json::Value::integer(row.gpu_bytes)},
                                       {"options", json::Value::string(row.options)}}));
  }
  return out;
}

// A configuration with the flags of `tessera train`: all that it comes to is printed, and nothing
// is trained.
int plan_configuration(std::vector<std::string> line) {
  line.emplace_back("--dry-run");
  return commands().get("train").run(line);
}

int plan(const std::vector<std::string>& line) {
  if (describes_machine(line)) return described_plan(line);
  if (!line.empty() && !line.front().starts_with("-")) return plan_configuration(line);
  PlanFlags words;
  if (!parse(words, line)) return kExitOk;
  const int stage = stage_of(words.estimate);
  check(words, stage);
  std::optional<planner::Plan> ours;
  report::ModelSize size{words.total_params.value_or(0), words.largest_layer_params.value_or(0)};
  if (!words.model.empty()) {
    const planner::Plan made = plan_of(words, stage);
    size = report::model_size(made.model().resolved.model);
    if (all_ranks(words) <= kMostRanks) ours = made;
  }
  const report::Machines machines{words.gpus, words.nodes};
  if (words.common.json) {
    json::Value out;
    out["total_params"] = json::Value::integer(size.total_params);
    out["largest_layer_params"] = json::Value::integer(size.largest_layer_params);
    out["rows"] = rows_json(stage, size, machines);
    if (ours) out["tessera"] = ours_json(*ours);
    std::printf("%s\n", out.dump(2).c_str());
    return kExitOk;
  }
  std::fputs(report::estimate_text(stage, size, machines).c_str(), stdout);
  if (ours) {
    std::fputs(ours_text(*ours).c_str(), stdout);
  } else if (!words.model.empty()) {
    std::printf("\nIn tessera: no estimate, as %s ranks are more than the %s that it runs\n",
                text::with_commas(all_ranks(words)).c_str(),
                text::with_commas(kMostRanks).c_str());
  }
  return kExitOk;
}

TESSERA_COMMAND("plan", "estimate the memory of a model", plan);

}  // namespace
}  // namespace tessera::cli

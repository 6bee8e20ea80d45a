// SPDX-License-Identifier: Apache-2.0
// tessera bench step: profiles a training step and compares it with what the machine allows.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/bench_commands.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/config/overrides.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/random_tokens.h"
#include "tessera/engine/step_profile.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/launch.h"
#include "tessera/models/family.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/planner/with_data.h"
#include "tessera/text/tokenizer.h"

namespace tessera::cli {
namespace {

/// Number of steps until caches are warm and memory is allocated.
constexpr std::int64_t kWarmup = 2;

struct StepFlags {
  std::string config;
  std::optional<std::int64_t> ranks;
  std::int64_t steps = 3;
  std::vector<std::string> set;
  Common common;
};

bool parse(StepFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "bench step",
      "Trains a few steps of CONFIG on random tokens and shows for each operation of the first "
      "rank its time, its fraction of the step, FLOP/s and bytes/s, and the fraction of this "
      "machine's measured peak. Reads no data and writes nothing.",
      {"tessera bench step my.json",
       "tessera bench step my.json --set bf16.enabled=true --steps 5",
       "tessera bench step my.json -n 2 -v            every operation, on two ranks",
       "tessera bench step my.json --json"});
  arguments.positional("CONFIG", &words.config, "JSON file; comments are allowed");
  arguments.option(kRanksOption, &words.ranks, "Local ranks [1]");
  arguments.option(
      "--steps", &words.steps, "Number of measured steps, after two warm-up steps [3]");
  arguments.option(
      "--set", &words.set, "KEY=VALUE: overrides a key of CONFIG; the value is JSON or a string");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

planner::Plan plan_of(const StepFlags& words) {
  constexpr std::int64_t kMostSteps = 1'000'000;
  TESSERA_REQUIRE(words.steps >= 1 && words.steps <= kMostSteps,
                  Config,
                  fmt::format("--steps {}: expected 1 to {}", words.steps, kMostSteps),
                  "");
  json::Value source = read_config(words.config);
  for (const std::string& assignment : words.set)
    config::apply_override(source, assignment);
  // Without evaluations no validation data is required.
  config::drop_evaluation(source);
  return planner::make_plan(source, ranks_of(words.ranks), words.config);
}

json::Value operation_json(const ops::OpRow& row, const engine::StepProfile& profile) {
  const engine::PeakRates& peak = profile.peak;
  json::Value out;
  out["name"] = json::Value::string(row.name);
  out["shape"] = json::Value::string(row.shape);
  out["calls"] = json::Value::integer(row.calls);
  out["seconds"] = json::Value::number(row.seconds);
  out["share"] = json::Value::number(row.seconds / profile.seconds);
  out["flops_per_s"] = json::Value::number(row.flops / row.seconds);
  out["bytes_per_s"] = json::Value::number(row.bytes / row.seconds);
  out["of_machine"] = json::Value::number(peak.seconds(row.flops, row.bytes) / row.seconds);
  out["bound"] =
      json::Value::string(peak.bound_by_flops(row.flops, row.bytes) ? "flops" : "memory");
  return out;
}

json::Value profile_json(const engine::StepProfile& profile) {
  json::Value out;
  out["steps"] = json::Value::integer(profile.steps);
  out["seconds"] = json::Value::number(profile.seconds);
  out["tokens_per_s"] = json::Value::number(static_cast<double>(profile.tokens) / profile.seconds);
  out["peak_flops_per_s"] = json::Value::number(profile.peak.flops);
  out["peak_bytes_per_s"] = json::Value::number(profile.peak.bytes);
  out["least_seconds"] = json::Value::number(profile.least_seconds());
  out["least_seconds_of_products"] = json::Value::number(profile.least_seconds_of_products());
  out["operations"] = json::Value::array();
  for (const ops::OpRow& row : profile.operations)
    out["operations"].push_back(operation_json(row, profile));
  out["collectives_s"] = json::Value::number(profile.collectives);
  out["between_operations_s"] = json::Value::number(profile.rest());
  return out;
}

}  // namespace

int bench_step(const std::vector<std::string>& line) {
  StepFlags words;
  if (!parse(words, line)) return kExitOk;
  const planner::Plan asked = plan_of(words);
  auto data = std::make_shared<data::Datasets>();
  data->train = std::make_unique<engine::RandomTokens>(
      planner::sequence_length_of(asked),
      std::min<std::int64_t>(planner::tokenizer_of(asked)->size(),
                             planner::model_of(asked).vocab_size));
  const planner::PlacedPlan plan =
      planner::place(planner::with_data(asked, *data), launch::available_memory());
  TESSERA_REQUIRE(
      plan.course().max_steps >= 1 + kWarmup,
      Config,
      fmt::format("a training of {} steps is too short to measure", plan.course().max_steps),
      fmt::format("--set trainer.max_steps={}", words.steps + kWarmup));
  const auto measured = [&](comm::World& world) -> int {
    const auto engine = engine::initialize(plan, world, data);
    const std::optional<engine::StepProfile> profile = engine::profile_steps(
        *engine, kWarmup, std::min(words.steps, plan.course().max_steps - kWarmup));
    engine->finish();
    world.barrier(TESSERA_HERE("end of the benchmark"));
    if (!profile) {
      const auto signal = static_cast<int>(world.control().stop_requested.load());
      if (world.is_leader()) log::warn("stopped before all steps were measured");
      return launch::unsaved_exit_code(signal);
    }
    if (world.is_leader() && words.common.json) {
      std::printf("%s\n", profile_json(*profile).dump().c_str());
    } else if (world.is_leader() && !words.common.quiet) {
      std::fputs(engine::roofline_page(*profile, plan, words.common.verbose).c_str(), stdout);
    }
    if (world.is_leader()) require_output_written();
    return kExitOk;
  };
  return engine::run_ranks(plan, engine::log_failure, measured, launch::Messages());
}

}  // namespace tessera::cli

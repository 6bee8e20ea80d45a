// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/verify_rl.h"

#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/overrides.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/plan.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::cli {
namespace {

struct VerifyRlFlags {
  std::string config;
  std::optional<std::int64_t> ranks;
  std::vector<std::string> set;
  Common common;
};

bool parse(VerifyRlFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "verify rl",
      "Makes the first rollout of CONFIG, trains one step on it, and prints how far the "
      "log-probabilities of sampling are from those of training, and which share of the ratios is "
      "clipped. Nothing is written. Exits with code 7 beyond rl.parity_limit, and if rl.parity is "
      "exact and they are not the same to the bit.",
      {"tessera verify rl digits.json", "tessera verify rl digits.json -n 2 --json"});
  arguments.positional("CONFIG", &words.config, "JSON file; comments are allowed");
  arguments.option(kRanksOption, &words.ranks, "Local ranks [1]");
  arguments.option(
      "--set", &words.set, "KEY=VALUE: overrides a key of CONFIG; the value is JSON or a string");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

void tell_parity(const engine::StepReport& report, bool as_json) {
  const auto mean_of = [&](const char* name) {
    const engine::Metric* const found = engine::find_metric(report.metrics, name);
    return found == nullptr ? 0.0 : found->mean;
  };
  const engine::Metric* const largest = engine::find_metric(report.metrics, "parity_max");
  TESSERA_ASSERT(largest != nullptr);
  if (as_json) {
    std::printf(
        "%s\n",
        json::Value::object(
            {{"tokens", json::Value::integer(static_cast<std::int64_t>(largest->denominator))},
             {"largest", json::Value::number(largest->mean)},
             {"mean", json::Value::number(mean_of("parity_mean"))},
             {"clip_share", json::Value::number(mean_of("clip_share"))}})
            .dump()
            .c_str());
    return;
  }
  std::printf(
      "%s tokens were sampled\nlargest |logp_generate - logp_train|  %s\nmean                "
      "                 %s\nclipped ratios in the first update    %s\n",
      text::with_commas(static_cast<std::int64_t>(largest->denominator)).c_str(),
      text::number(largest->mean).c_str(),
      text::number(mean_of("parity_mean")).c_str(),
      text::number(mean_of("clip_share")).c_str());
}

}  // namespace

int verify_rl(const std::vector<std::string>& line) {
  VerifyRlFlags words;
  if (!parse(words, line)) return kExitOk;
  json::Value source = read_config(words.config);
  for (const std::string& assignment : words.set)
    config::apply_override(source, assignment);
  const planner::Plan asked =
      planner::make_plan(source, ranks_of(words.ranks), name_of_config(words.config));
  const tasks::Rl* const task = tasks::as_rl(asked.data().task.get());
  TESSERA_REQUIRE(task != nullptr,
                  Config,
                  fmt::format("{} is of the task {}", words.config, asked.data().task_options.type),
                  "name a configuration of the task rl, or use tessera verify CONFIG");
  TESSERA_REQUIRE(task->options().parity != tasks::Parity::Off,
                  Config,
                  "rl.parity is off, so that nothing is measured",
                  "--set rl.parity=measure");
  const auto data = engine::open_data(asked, {});
  const planner::PlacedPlan plan =
      planner::place(planner::with_data(asked, *data), launch::available_memory());
  return engine::run_ranks(plan, engine::log_failure, [&](comm::World& world) {
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    engine.begin_experience();
    const engine::StepReport report = engine.train_step();
    if (world.is_leader() && !words.common.quiet) tell_parity(report, words.common.json);
    if (world.is_leader()) require_output_written();
    engine.finish();
    world.barrier(TESSERA_HERE("end of a verified run"));
    return kExitOk;
  });
}

}  // namespace tessera::cli

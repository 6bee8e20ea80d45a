// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/rl_branch.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/cli/train_plan.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/branch.h"
#include "tessera/rlhf/plan.h"
#include "tessera/rlhf/replay.h"

namespace tessera::cli {
namespace {

struct BranchFlags {
  std::string action, run, out;
  std::int64_t step = 0;
  std::optional<std::int64_t> ranks;
  std::vector<std::string> set;
  bool no_training = false;
  Common common;
};

bool parse(BranchFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "rl branch",
      "Begins a new run at a step of a run of the task rl and trains it, with the options that "
      "--set changes. The updates from the newest checkpoint up to STEP are made again from the "
      "ledger, without drawing a token, so that any step can be named. Model, adapter, tokenizer "
      "and optimizer type stay as they are. Without --set the new run repeats the old one.",
      {"tessera rl branch runs/digits 40 --out runs/digits-kl --set rl.kl.coefficient=0.1",
       "tessera rl branch runs/digits 40 --out runs/again --set trainer.seed=7"});
  arguments.positional("ACTION", &words.action, "branch");
  arguments.positional("RUN", &words.run, "Run folder of a training of the task rl");
  arguments.positional("STEP", &words.step, "The number of updates after which the runs part");
  arguments.option("--out", &words.out, "Folder of the new run");
  arguments.option(
      "--set", &words.set, "KEY=VALUE: changes a key of the run's configuration; may be repeated");
  arguments.flag("--no-training,--no_training",
                 words.no_training,
                 "Write the folder only; tessera train OUT/config.json trains it");
  arguments.option(kRanksOption, &words.ranks, "Local ranks [1]");
  arguments.common(words.common);
  return arguments.parse(line);
}

void check(const BranchFlags& words) {
  TESSERA_REQUIRE(!words.out.empty(), Config, "--out is missing", "name the folder of the new run");
  std::error_code ignored;
  const std::filesystem::path out = words.out;
  TESSERA_REQUIRE(!std::filesystem::exists(out) || std::filesystem::is_empty(out, ignored),
                  Config,
                  fmt::format("--out {} is not empty", words.out),
                  "name a new folder");
  const std::int64_t last = rlhf::last_recorded_step(words.run).value_or(0);
  TESSERA_REQUIRE(words.step >= 1 && words.step <= last,
                  Config,
                  fmt::format("STEP is {}, and the run has made {} updates", words.step, last),
                  "name a step of the run");
}

}  // namespace

int rl_branch(const std::vector<std::string>& line) {
  BranchFlags words;
  if (!parse(words, line)) return kExitOk;
  TESSERA_REQUIRE(!hosts::detect_launcher(),
                  Unsupported,
                  "not supported under a launcher, which starts a single job: tessera rl branch",
                  "start it without the launcher: tessera rl branch RUN STEP --out DIR -n 2");
  const std::filesystem::path out = words.out;
  const rlhf::BranchPlans plans =
      rlhf::branch_plans(words.run, out, words.set, ranks_of(words.ranks));
  check(words);
  const auto data = engine::open_data(plans.run, {}), next = engine::open_data(plans.next, {});
  TESSERA_REQUIRE(data->fingerprint == next->fingerprint,
                  Config,
                  "a branch cannot change the training data: the prompts, the sequence length, and "
                  "the room that rl.max_new_tokens leaves for prompts",
                  "remove that --set");
  const planner::PlanWithData run = planner::with_data(plans.run, *data);
  // Refuses what cannot be trained before anything is written.
  planner::place(planner::with_data(plans.next, *next), launch::available_memory());
  std::filesystem::create_directories(out);
  const int code = engine::run_ranks(run, engine::log_failure, [&](comm::World& world) {
    rlhf::write_branch(run, world, data, words.run, words.step, out, words.set);
    return kExitOk;
  });
  if (code != kExitOk) return code;
  files::write_atomic(out / "config.json", plans.next.resolved().dump(2) + '\n');
  Terminal terminal;
  if (!words.common.quiet) {
    terminal.line(
        fmt::format("{} goes on from {} after {} updates", out.string(), words.run, words.step));
  }
  if (words.no_training) return kExitOk;
  return train_plan(plans.next,
                    {.resume = {},
                     .dry_run = false,
                     .quiet = words.common.quiet,
                     .console = &terminal,
                     .how = {}});
}

}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
// tessera rl: uses of a ledger of rollouts.
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/rl_branch.h"
#include "tessera/cli/rl_why.h"
#include "tessera/cli/terminal.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/planner/course.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/replay.h"

namespace tessera::cli {
namespace {

constexpr int kExitOtherUpdate = 1;

struct ReplayFlags {
  std::string action, run;
  std::int64_t step = 0;
  std::optional<std::int64_t> ranks;
  Common common;
};

bool parse(ReplayFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "rl",
      "replay: makes an update of a run of the task rl again from what its ledger of rollouts has, "
      "without drawing a token, and compares loss and gradient norm to the last bit with those "
      "that "
      "the run recorded. It begins at the newest checkpoint before STEP. Exits with code 1 where a "
      "step differs. why: ranks the completions of an update by their shares of the gradient; "
      "tessera rl why --help. branch: a new run that goes on from a step with other options; "
      "tessera rl branch --help.",
      {"tessera rl replay runs/digits 40",
       "tessera rl why runs/digits 40",
       "tessera rl branch runs/digits 40 --out runs/other --set rl.kl.coefficient=0.1"});
  arguments.positional("ACTION", &words.action, "replay");
  arguments.positional("RUN", &words.run, "Run folder of a training of the task rl");
  arguments.positional("STEP", &words.step, "The update to make again");
  arguments.option(kRanksOption, &words.ranks, "Local ranks [1]");
  arguments.common(words.common);
  return arguments.parse(line);
}

std::string recorded_text(const std::optional<double>& value) {
  return value ? text::number(*value) : "nothing";
}

int replay(const ReplayFlags& words) {
  TESSERA_REQUIRE(words.step >= 1,
                  Config,
                  fmt::format("STEP is {}: steps count from 1", words.step),
                  "tessera rl replay RUN 1");
  const planner::Plan run = rlhf::plan_of_run(words.run, ranks_of(words.ranks));
  const auto data = engine::open_data(run, {});
  const planner::PlanWithData plan = planner::with_data(run, *data);
  // A longer training has other learning rates, so the step must be within the run.
  TESSERA_REQUIRE(
      words.step <= plan.course().max_steps,
      Config,
      fmt::format("the run has {} steps, and STEP is {}", plan.course().max_steps, words.step),
      "name a step of the run");
  return engine::run_ranks(plan, engine::log_failure, [&](comm::World& world) {
    bool equal = true;
    rlhf::replay(plan, world, data, words.run, words.step, [&](const rlhf::ReplayedStep& one) {
      equal = equal && one.equal();
      if (!world.is_leader() || words.common.quiet) return;
      std::printf(
          "%s\n",
          (one.equal() ? fmt::format("step {}: equal, loss {} gradient norm {}",
                                     one.report.step,
                                     text::number(one.report.loss),
                                     text::number(one.report.grad_norm))
                       : fmt::format("step {}: loss {} gradient norm {}, and the run recorded "
                                     "{} and {}",
                                     one.report.step,
                                     text::number(one.report.loss),
                                     text::number(one.report.grad_norm),
                                     recorded_text(one.loss),
                                     recorded_text(one.grad_norm)))
              .c_str());
      std::fflush(stdout);
    });
    if (world.is_leader()) require_output_written();
    return equal ? kExitOk : kExitOtherUpdate;
  });
}

int rl(const std::vector<std::string>& line) {
  ReplayFlags words;
  if (!line.empty() && line.front() == "why") return rl_why(line);
  if (!line.empty() && line.front() == "branch") return rl_branch(line);
  if (!parse(words, line)) return kExitOk;
  TESSERA_REQUIRE(
      words.action == "replay",
      Config,
      fmt::format("tessera rl {}: unknown action", words.action),
      "tessera rl replay RUN STEP, tessera rl why RUN STEP, or tessera rl branch RUN STEP --out "
      "DIR");
  return replay(words);
}

TESSERA_COMMAND("rl", "repeat, explain or branch off an update of a run of the task rl", rl);

}  // namespace
}  // namespace tessera::cli

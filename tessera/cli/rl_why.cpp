// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/rl_why.h"

#include <cstddef>
#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/replay.h"
#include "tessera/rlhf/why.h"

namespace tessera::cli {
namespace {

struct WhyFlags {
  std::string action, run;
  std::optional<std::int64_t> step, ranks;
  std::int64_t top = 20;
  Common common;
};

bool parse(WhyFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "rl why",
      "Ranks the completions that an update of a run of the task rl learned by their shares of the "
      "policy's gradient. The gradient g is the sum of the completions' gradients g_i, and the "
      "share of one is <g_i, g> / <g, g>: all shares add up to 1, and a negative one belongs to a "
      "completion that alone would move the weights against the update. The updates from the "
      "newest "
      "checkpoint before STEP are made again from the ledger, without drawing a token.",
      {"tessera rl why runs/digits", "tessera rl why runs/digits 40 --top 5"});
  arguments.positional("ACTION", &words.action, "why");
  arguments.positional("RUN", &words.run, "Run folder of a training of the task rl");
  arguments.positional("STEP", &words.step, "The update [the last]", /*required=*/false);
  arguments.option("--top", &words.top, "Number of completions to print; 0: all [20]");
  arguments.option(kRanksOption, &words.ranks, "Local ranks [1]");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

json::Value to_json(const rlhf::CompletionShare& one) {
  return json::Value::object({{"number", json::Value::integer(one.number)},
                              {"prompt", json::Value::integer(one.prompt)},
                              {"share", json::Value::number(one.contribution.share)},
                              {"norm", json::Value::number(one.contribution.norm)},
                              {"reward", json::Value::number(one.reward)},
                              {"advantage", json::Value::number(one.advantage)},
                              {"tokens", json::Value::integer(one.tokens)},
                              {"learned", json::Value::boolean(one.learned)},
                              {"prompt_text", json::Value::string(one.prompt_text)},
                              {"text", json::Value::string(one.text)}});
}

void print_line(const std::string& line) {
  std::printf("%s\n", line.c_str());
}

void print(const rlhf::StepShares& shares, std::int64_t step, const WhyFlags& words) {
  const std::size_t all = shares.completions.size(),
                    shown =
                        words.top == 0 ? all : std::min(all, static_cast<std::size_t>(words.top));
  if (words.common.json) {
    json::Value out = json::Value::object({{"step", json::Value::integer(step)},
                                           {"version", json::Value::integer(shares.version)},
                                           {"rest", json::Value::number(shares.rest)}});
    out["completions"] = json::Value::array({});
    for (std::size_t i = 0; i < shown; ++i)
      out["completions"].push_back(to_json(shares.completions[i]));
    print_line(out.dump());
    return;
  }
  print_line(fmt::format("step {} learned from {} completions of the policy after {} updates",
                         step,
                         all,
                         shares.version));
  print_line("   share      norm   reward  advantage  tokens  prompt -> completion");
  for (std::size_t i = 0; i < shown; ++i) {
    const rlhf::CompletionShare& one = shares.completions[i];
    print_line(fmt::format("{:7.2f}% {:9.3g} {:8.4g} {:10.4g} {:7}  {} -> {}{}",
                           100 * one.contribution.share,
                           one.contribution.norm,
                           one.reward,
                           one.advantage,
                           one.tokens,
                           json::Value::string(one.prompt_text).dump(),
                           json::Value::string(one.text).dump(),
                           one.learned ? "" : " (not in the loss)"));
  }
  if (shown < all) print_line(fmt::format("and {} more; --top 0 prints all", all - shown));
  print_line(
      fmt::format("{:7.2f}% belongs to no completion: pretraining texts, losses of whole "
                  "batches, rounding",
                  100 * shares.rest));
}

}  // namespace

int rl_why(const std::vector<std::string>& line) {
  WhyFlags words;
  if (!parse(words, line)) return kExitOk;
  TESSERA_REQUIRE(
      words.top >= 0, Config, fmt::format("--top is {}", words.top), "give a number from 0 on");
  const planner::Plan run = rlhf::plan_of_run(words.run, ranks_of(words.ranks));
  const std::optional<std::int64_t> last = rlhf::last_recorded_step(words.run);
  const std::int64_t step = words.step.value_or(last.value_or(0));
  TESSERA_REQUIRE(
      step >= 1 && step <= last.value_or(0),
      Config,
      fmt::format("STEP is {}, and the run has made {} updates", step, last.value_or(0)),
      "name a step of the run");
  const auto data = engine::open_data(run, {});
  const planner::PlanWithData plan = planner::with_data(run, *data);
  return engine::run_ranks(plan, engine::log_failure, [&](comm::World& world) {
    const rlhf::StepShares shares = rlhf::shares_of_step(plan, world, data, words.run, step);
    if (world.is_leader()) {
      print(shares, step, words);
      require_output_written();
    }
    return kExitOk;
  });
}

}  // namespace tessera::cli

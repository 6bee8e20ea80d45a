// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/why.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/engine/engine.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/rlhf/ledger.h"
#include "tessera/rlhf/replay.h"
#include "tessera/tasks/rl/prompts.h"
#include "tessera/tasks/rl/rl.h"
#include "tessera/tasks/task.h"
#include "tessera/text/tokenizer.h"

namespace tessera::rlhf {
namespace {

/// Returns a completion's text without the end token.
std::string text_of(const planner::Plan& plan, const Completion& one) {
  std::vector<std::int32_t> ids = one.ids;
  if (one.ended) ids.pop_back();
  return text::replace_invalid_utf8(planner::tokenizer_of(plan)->decode(ids));
}

double weighted(const std::vector<tasks::RlReward>& functions, const std::vector<double>& values) {
  double sum = 0.0;
  for (std::size_t f = 0; f < functions.size(); ++f)
    sum += std::isnan(values[f]) ? 0.0 : functions[f].weight * values[f];
  return sum;
}

}  // namespace

StepShares shares_of_step(const planner::PlanWithData& plan,
                          comm::World& world,
                          const std::shared_ptr<const data::Datasets>& data,
                          const std::filesystem::path& run,
                          std::int64_t step) {
  const tasks::Rl& task = *tasks::as_rl(planner::task_of(plan).get());
  engine::Engine engine(plan, world, data);
  begin_replay(engine, run, step);
  while (engine.step() < step - 1)
    engine.train_step();
  const std::vector<engine::Contribution> contributions = engine.contributions();

  std::vector<std::string> names;
  for (const tasks::RlReward& reward : task.rewards())
    names.push_back(reward.name);
  const auto kept = read_rollout(run / "rollouts.jsonl", step - 1, names);
  TESSERA_REQUIRE(kept,
                  Format,
                  fmt::format("the ledger of {} has no rollout before step {}", run.string(), step),
                  "name a step whose rollout is in rollouts.jsonl");
  const auto& prompts = dynamic_cast<const tasks::Prompts&>(*data->train);
  StepShares out{.version = kept->version, .completions = {}, .rest = 1.0};
  // A rollout serves several updates, and each mini-batch takes its own part.
  const std::int64_t first =
      (step - 1 - kept->version) % task.options().mini_batches * planner::global_batch_of(plan);
  for (std::size_t i = 0; i < contributions.size(); ++i) {
    const std::int64_t number = first + static_cast<std::int64_t>(i);
    const Completion& completion = kept->completions.at(number);
    const Worth& worth = kept->worths.at(number);
    const double sum = std::accumulate(worth.advantages.begin(), worth.advantages.end(), 0.0);
    out.rest -= contributions[i].share;
    out.completions.push_back(
        {.number = number,
         .prompt = completion.prompt,
         .tokens = std::ssize(completion.ids),
         .learned = worth.learned,
         .reward = weighted(task.rewards(), worth.rewards),
         .advantage = sum / static_cast<double>(std::max<std::size_t>(1, worth.advantages.size())),
         .contribution = contributions[i],
         .prompt_text = prompts.prompt(completion.prompt).text,
         .text = text_of(plan, completion)});
  }
  std::ranges::stable_sort(out.completions, std::ranges::greater(), [](const CompletionShare& one) {
    return std::abs(one.contribution.share);
  });
  engine.finish();
  world.barrier(TESSERA_HERE("end of a replay"));
  return out;
}

}  // namespace tessera::rlhf

// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/ahead_writer.h"

#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/data/token_dataset.h"
#include "tessera/engine/shared_values.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/values.h"

namespace tessera::rlhf {

AheadWriter::AheadWriter(const planner::Plan& plan,
                         const tasks::Rl& task,
                         comm::World& world,
                         engine::TrainState& policy,
                         const tasks::Prompts& prompts,
                         Generators* generators)
    : RolloutWriter(plan, task, world, policy.executor(), prompts),
      policy_(policy),
      generators_(generators),
      batches_(prompts.size(),
               plan.recipe().global_batch,
               planner::data_options_of(plan).drop_last,
               planner::batch_sizes(plan.recipe())),
      obtained_at_(now_s()) {}

void AheadWriter::require_generators() const {
  TESSERA_REQUIRE(options_.overlap == 0 || generators_ != nullptr,
                  Unsupported,
                  "rl.overlap needs ranks that only write rollouts, and only tessera train and "
                  "tessera rlhf start them",
                  "set rl.overlap to 0 here");
}

void AheadWriter::make_copy() {
  if (!regroups(plan_)) return;
  regrouped_ = world_.part(0, rollout_mesh(plan_, world_.size()), kCopyWorld);
  copy_.emplace(plan_, *regrouped_);
  draw_with(*regrouped_, copy_->executor(), [this] { copy_->follow(policy_); });
}

std::int64_t AheadWriter::last_kept(std::int64_t step) const {
  // Within the updates of a rollout, the next one is under way.
  return generators_ == nullptr ? step : step + updates() - 1;
}

void AheadWriter::read_kept(const std::filesystem::path& ledger, std::int64_t step) {
  kept_ = read_rollout(ledger, step, names());
  if (generators_ == nullptr) return;
  kept_ahead_ = read_rollout(ledger, last_kept(step), names());
  if (kept_ahead_ && kept_ && kept_ahead_->version == kept_->version) kept_ahead_.reset();
}

Place AheadWriter::place_after(const data::GlobalBatch& batch) const {
  data::GlobalBatch next = batch;
  for (std::int64_t steps = policy_.steps() + 1;; ++steps) {
    next = batches_.at(next.consumed_after);
    const Place place = place_of(next, steps);
    if (place.update == 0) return place;
  }
}

void AheadWriter::obtain(const Place& place, const data::GlobalBatch& batch) {
  policy_.wait();
  if (generators_ == nullptr || !replayed_.empty()) return write(place);
  completions_.assign(static_cast<std::size_t>(size_), {});
  rewards_BF_ = at::Tensor();
  if (kept_ahead_ && kept_ahead_->version == version_)
    kept_ = std::exchange(kept_ahead_, std::nullopt);
  if (has_all(kept_, version_, /*judged=*/place.update > 0)) {
    take_completions(kept_);
  } else {
    TESSERA_REQUIRE(place.update == 0, Format, lacking("completions"), kStartOver);
    if (next_.version != version_) {
      // A run that went back writes these again, as it said then.
      if (version_ > 0 && roll_backs_ == 0 && world_.is_leader())
        log::warn(lacking("the completions") + "; the present policy writes them");
      order(place);
    }
    collect();
    turn();
    drawn_ = next_.drawn;
  }
  const double now = now_s();
  learners_waited_ = std::exchange(waited_s_, 0.0) / (now - obtained_at_);
  obtained_at_ = now;
  rows_ = rows_for(all_numbers());
  const Place next = place_after(batch);
  if (has_all(kept_ahead_, next.version, /*judged=*/false)) return;
  kept_ahead_.reset();
  order(next);
}

void AheadWriter::order(const Place& place) {
  generators_->order(place, roll_backs_, policy_);
  next_.version = place.version;
  next_.lag = place.version - policy_.steps();
  next_.completions.clear();
}

void AheadWriter::turn() {
  std::swap(completions_, next_.completions);
  std::swap(version_, next_.version);
}

void AheadWriter::collect() {
  if (generators_ == nullptr || !generators_->under_way()) return;
  const double begin = now_s();
  Generators::Rollout made = generators_->collect();
  for (Completion& one : made.completions)
    one.lag = next_.lag;
  std::vector<double> times = {made.waited_s, made.worked_s};
  engine::share_with_all(world_, times, "how long ranks waited");
  waited_s_ += now_s() - begin;
  generators_waited_ = times[0] / (times[0] + times[1]);
  turn();
  next_.drawn = {.generate_s = times[1]};
  const std::vector<std::int64_t> all = all_numbers();
  completions_.assign(static_cast<std::size_t>(size_), {});
  exchange(all,
           made.completions.empty() ? std::vector<std::int64_t>() : all,
           made.completions,
           Among::All);
  keep(all);
  for (const Completion& one : completions_)
    next_.drawn.generated += std::ssize(one.ids);
  turn();
}

void AheadWriter::add_overlap(engine::Metrics& metrics, std::int64_t update) const {
  if (options_.overlap == 0) return;
  metrics.push_back({"staleness", static_cast<double>(lag() + update), 1.0});
  if (generators_ == nullptr) return;  // the ledger is learned again
  metrics.push_back({"learners_waited", learners_waited_, 1.0});
  metrics.push_back({"generators_waited", generators_waited_, 1.0});
}

}  // namespace tessera::rlhf

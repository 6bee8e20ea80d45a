// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/generators.h"

#include <array>
#include <optional>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/mesh/mesh.h"
#include "tessera/ops/batch_invariance.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/rlhf/rollout_model.h"
#include "tessera/tasks/rl/prompts.h"
#include "tessera/tasks/rl/rl.h"
#include "tessera/tensor/span.h"

namespace tessera::rlhf {
namespace {

/// Positions in the link.
constexpr int kLearner = 0, kWriter = 1;
/// Numbers of the parts of a job.
constexpr int kLearners = 1, kGenerators = 2, kLink = 3;

/// Positions of the fields of an Order, which says what the ranks that write do next.
enum : std::size_t {
  kEnd,      ///< 1: the ranks return; 0: they write a rollout
  kCode,     ///< the code that they return at the end
  kWeights,  ///< the weights that follow: kNone, kTrained or kAll
  kVersion,
  kEpoch,
  kRollout,
  kRollBacks,
  kOrderSize
};
using Order = std::array<double, kOrderSize>;
/// Values of kWeights.
constexpr double kNone = 0, kTrained = 1, kAll = 2;

void send(comm::World& link, std::span<double> values, int root, const char* what) {
  link.host_transport()
      .broadcast(
          link.everyone(), {values.data(), values.size(), DType::F64, {}}, root, TESSERA_HERE(what))
      ->wait_reusable();
}

/// Sends a parameter from the rank that learns, or receives it.
void exchange_weights(comm::World& link, const ParamInfo& info, const at::Tensor& whole) {
  link.transport()
      .broadcast(link.everyone(), span_of(whole), kLearner, TESSERA_HERE("weights " + info.name))
      ->wait_reusable();
}

/// A rank that writes.
class Generator final : private RolloutWriter {
 public:
  Generator(RolloutModel& policy,
            const tasks::Rl& task,
            comm::World& world,
            comm::World& link,
            const tasks::Prompts& prompts)
      : RolloutWriter(policy.plan(), task, world, policy.executor(), prompts),
        policy_(policy),
        link_(link) {}

  int run() {
    for (double idle = now_s();; idle = now_s()) {
      Order order{};
      send(link_, order, kLearner, "an order of a rollout");
      if (order[kEnd] > 0) return static_cast<int>(order[kCode]);
      if (order[kWeights] > kNone) {
        policy_.receive(order[kWeights] == kAll,
                        [&](const ParamInfo& info, const at::Tensor& room) {
                          exchange_weights(link_, info, room);
                        });
      }
      const double begin = now_s();
      write(order);
      std::vector<double> made = {begin - idle, now_s() - begin};
      made.resize(2 + completions_.size() * each());
      for (std::size_t i = 0; i < completions_.size(); ++i)
        to_numbers(completions_[i], options_.max_new_tokens, made.data() + 2 + i * each());
      send(link_, made, kWriter, "a rollout");
    }
  }

 private:
  [[nodiscard]] std::size_t each() const { return numbers_of_completion(options_.max_new_tokens); }

  void write(const Order& order) {
    drawn_ = {};
    version_ = static_cast<std::int64_t>(order[kVersion]);
    roll_backs_ = static_cast<std::int64_t>(order[kRollBacks]);
    world_.set_step(version_);
    completions_.assign(static_cast<std::size_t>(size_), {});
    generate({.version = version_,
              .update = 0,
              .epoch = static_cast<std::int64_t>(order[kEpoch]),
              .rollout = static_cast<std::int64_t>(order[kRollout])},
             all_groups(),
             0);
    tell_speed();
  }

  RolloutModel& policy_;
  comm::World& link_;
};

}  // namespace

JobParts divide_job(const planner::Plan& plan, comm::World& job) {
  const int learners = plan.ranks(), generators = plan.data().task->extra_ranks();
  TESSERA_ASSERT(generators > 0 && job.size() == learners + generators);
  JobParts out;
  if (job.rank() < learners) {
    out.learners = job.part(0, plan.mesh(), kLearners);
  } else {
    out.generators = job.part(learners, rollout_mesh(plan, generators), kGenerators);
  }
  if (job.rank() >= learners - 1)
    out.link = job.part(learners - 1, mesh::Mesh::data_parallel(1 + generators), kLink);
  return out;
}

Generators::Generators(comm::World* link, const tasks::RlOptions& options, std::int64_t rollout)
    : link_(link), longest_(options.max_new_tokens), rollout_(rollout) {}

void Generators::order(const Place& place, std::int64_t roll_backs, engine::TrainState& policy) {
  TESSERA_ASSERT(!under_way_);
  const double weights = sent_ < 0 ? kAll : sent_ < policy.steps() ? kTrained : kNone;
  if (link_ != nullptr) {
    Order order{};
    order[kWeights] = weights;
    order[kVersion] = static_cast<double>(place.version);
    order[kEpoch] = static_cast<double>(place.epoch);
    order[kRollout] = static_cast<double>(place.rollout);
    order[kRollBacks] = static_cast<double>(roll_backs);
    send(*link_, order, kLearner, "an order of a rollout");
  }
  if (weights > kNone) {
    for_each_whole(
        policy, weights == kAll, [&](std::size_t, const ParamInfo& info, const at::Tensor& whole) {
          if (link_ != nullptr) exchange_weights(*link_, info, whole);
        });
  }
  sent_ = policy.steps();
  under_way_ = true;
}

Generators::Rollout Generators::collect() {
  TESSERA_ASSERT(under_way_);
  under_way_ = false;
  Rollout out;
  if (link_ == nullptr) return out;
  const std::size_t each = numbers_of_completion(longest_);
  std::vector<double> made(2 + static_cast<std::size_t>(rollout_) * each);
  send(*link_, made, kWriter, "a rollout");
  out.waited_s = made[0];
  out.worked_s = made[1];
  for (std::int64_t i = 0; i < rollout_; ++i) {
    out.completions.push_back(
        completion_of_numbers(made.data() + 2 + static_cast<std::size_t>(i) * each, longest_));
  }
  return out;
}

void Generators::start_over() {
  if (under_way_) (void)collect();
  sent_ = -1;
}

void Generators::finish(int code) {
  if (under_way_) (void)collect();
  if (link_ == nullptr) return;
  Order order{};
  order[kEnd] = 1.0;
  order[kCode] = code;
  send(*link_, order, kLearner, "the end of the rollouts");
}

int write_rollouts(const planner::Plan& plan,
                   comm::World& world,
                   comm::World& link,
                   const data::Dataset& data) {
  const tasks::Rl* const task = tasks::as_rl(plan.data().task.get());
  const auto* const prompts = dynamic_cast<const tasks::Prompts*>(&data);
  TESSERA_ASSERT(task != nullptr && prompts != nullptr);
  std::optional<ops::BatchInvariance> alone;
  if (task->options().parity == tasks::Parity::Exact) alone.emplace();
  RolloutModel policy(plan, world);
  return Generator(policy, *task, world, link, *prompts).run();
}

int run_divided(const planner::Plan& plan,
                comm::World& job,
                const data::Dataset& data,
                const engine::ExperienceKind::Train& train) {
  const JobParts parts = divide_job(plan, job);
  int code = 0;
  if (parts.generators != nullptr) {
    code = write_rollouts(plan, *parts.generators, *parts.link, data);
  } else {
    const tasks::RlOptions& options = tasks::as_rl(plan.data().task.get())->options();
    Generators generators(
        parts.link.get(), options, options.rollout_size(planner::global_batch_of(plan)));
    code = train(*parts.learners, generators);
    generators.finish(code);
  }
  // A rank must not end while a peer may still read its memory.
  job.barrier(TESSERA_HERE("end of a divided job"));
  return code;
}

}  // namespace tessera::rlhf

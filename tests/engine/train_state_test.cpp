// SPDX-License-Identifier: Apache-2.0
// TrainState: several of them in one process and one world, and steps on batches that the caller
// made.
#include "tessera/engine/train_state.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/comm/world.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/with_data.h"

namespace tessera::engine {
namespace {

using tessera::test::Layout;
using tessera::test::TinyRun;

constexpr int kSteps = 3;

/// What one rank observes of a state: results of its steps, of evaluations between them, and hashes
/// of the pieces that it would save.
struct Seen {
  std::vector<double> numbers;
  std::vector<std::uint64_t> pieces;
  bool operator==(const Seen& other) const = default;
};

/// A plan with its data.
struct Planned {
  planner::PlanWithData plan;
  std::shared_ptr<const data::Datasets> data;
};

Planned planned(const TinyRun& run, const Layout& layout) {
  const planner::Plan plan = run.plan(layout);
  const std::shared_ptr<const data::Datasets> data = open_data(plan, {});
  return {planner::with_data(plan, *data), data};
}

/// A state on this rank, and what the test observes of it.
class Subject {
 public:
  Subject(const Planned& planned, comm::World& world)
      : planned_(planned), world_(world), state_(train_state_options(planned.plan), world) {
    state_.initialize_weights();
  }

  void step() {
    std::vector<nn::Batch> micros;
    const planner::Plan& plan = planned_.plan;
    const comm::Group& group = world_.group(mesh::AxisSet::dp());
    const std::int64_t first = state_.steps() * plan.recipe().global_batch;
    for (std::int64_t m = 0; m < plan.layout().accumulation; ++m)
      micros.push_back(batch(first + (m * group.size() + group.index) * plan.layout().micro_batch));
    const StepResult result = state_.step(micros);
    seen_.numbers.insert(seen_.numbers.end(), {result.loss, result.grad_norm, result.lr});
  }
  void infer() {
    nn::StepContext context(nn::Mode::Eval, 0);
    const nn::Outcome out = state_.infer(batch(100), context);
    if (!out.terms.empty()) seen_.numbers.push_back(out.terms.front().sum.item<double>());
  }
  Seen end() {
    for (const checkpoint::PieceBytes& piece : state_.pieces())
      seen_.pieces.push_back(files::xxh3(piece.bytes));
    state_.release_pieces();
    return seen_;
  }

 private:
  nn::Batch batch(std::int64_t first) const {
    std::vector<std::int64_t> samples;
    for (std::int64_t i = 0; i < planned_.plan.layout().micro_batch; ++i)
      samples.push_back(first + i);
    return make_batch(*planned_.data->train, samples, samples);
  }

  const Planned& planned_;
  comm::World& world_;
  TrainState state_;
  Seen seen_;
};

/// Trains all of `plans` side by side, a step of each in turn; what each rank saw of each.
std::vector<std::vector<Seen>> train_side_by_side(const std::vector<const Planned*>& plans) {
  prepare_process(1);
  const mesh::Mesh mesh = plans.front()->plan.mesh();
  std::vector<std::vector<Seen>> seen(plans.size(),
                                      std::vector<Seen>(static_cast<std::size_t>(mesh.size())));
  comm::run_threads(mesh, [&](comm::World& world) {
    at::set_num_threads(1);
    std::vector<std::unique_ptr<Subject>> subjects;
    for (const Planned* const planned : plans)
      subjects.push_back(std::make_unique<Subject>(*planned, world));
    for (int step = 0; step < kSteps; ++step) {
      for (const auto& subject : subjects)
        subject->step();
      for (const auto& subject : subjects)
        subject->infer();
    }
    for (std::size_t i = 0; i < subjects.size(); ++i)
      seen[i][static_cast<std::size_t>(world.rank())] = subjects[i]->end();
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test"))->wait();
  });
  return seen;
}

/// Another model with another optimizer, another type and another seed.
TinyRun other_run() {
  TinyRun run;
  run.set("model.hidden_size", "48")
      .set("optimizer.type", "\"Lamb\"")
      .set("trainer.seed", "9")
      .set("bf16", R"({"enabled": true})");
  return run;
}

class SideBySide : public ::testing::TestWithParam<Layout> {};

TEST_P(SideBySide, TwoStatesGiveTheBitsThatEachGivesAlone) {
  const Planned first = planned(TinyRun(), GetParam());
  const Planned second = planned(other_run(), GetParam());

  const auto alone = train_side_by_side({&first});
  const auto other_alone = train_side_by_side({&second});
  const auto both = train_side_by_side({&first, &second});

  EXPECT_EQ(both[0], alone[0]);
  EXPECT_EQ(both[1], other_alone[0]);
  EXPECT_NE(alone[0][0].numbers, other_alone[0][0].numbers);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    SideBySide,
    ::testing::Values(Layout{},
                      Layout{.ranks = 2, .accumulation = 2, .stage = 2},
                      Layout{.ranks = 2, .stage = 3},
                      Layout{.ranks = 2, .accumulation = 2, .pipeline = R"({"size": 2})"},
                      Layout{.ranks = 2, .context = 2}));

TEST(TrainState, GivesTheLossesOfAnEngineThatTakesTheSameSamples) {
  prepare_process(1);
  TinyRun run;
  const Planned tiny = planned(run.set("data.shuffle", "false"), {.accumulation = 2});
  comm::run_threads(1, [&](comm::World& world) {
    std::vector<double> of_engine, of_state;
    Engine engine(tiny.plan, world, tiny.data);
    engine.initialize_weights();
    Subject subject(tiny, world);
    for (int step = 0; step < kSteps; ++step) {
      const StepReport report = engine.train_step();
      of_engine.insert(of_engine.end(), {report.loss, report.grad_norm, report.lr});
      subject.step();
    }

    EXPECT_EQ(subject.end().numbers, of_engine);
  });
}

TEST(TrainState, RefusesAStepWithoutAMicroBatch) {
  prepare_process(1);
  const Planned tiny = planned(TinyRun(), {});
  comm::run_threads(1, [&](comm::World& world) {
    TrainState state(train_state_options(tiny.plan), world);
    state.initialize_weights();
    try {
      state.step(std::vector<nn::Batch>());
      FAIL() << "a step without micro-batches was made";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Config);
    }
  });
}

}  // namespace
}  // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Ranks that only write rollouts while the others learn: the same on any numbers of both, and after
// any stop.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include "support/host_world.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/planner/course.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/generators.h"
#include "tessera/rlhf/plan.h"

namespace tessera::test {
namespace {

using ::testing::HasSubstr;

std::string options(const std::string& more, int writers = 1) {
  return R"({"rewards": [{"type": "regex", "pattern": "[@-~]"}, {"type": "length", "max": 3, "weight": 0.5}],
             "max_new_tokens": 4, "prompts_at_once": 2, "overlap": 1, "rollout_ranks": )" +
         std::to_string(writers) + ", " + more + "}";
}

/// The metrics of a training by step, without the times, which differ from run to run.
using Told = std::vector<std::map<std::string, double>>;

struct Overlapped {
  Trace trace;
  Told told;
};

/// Trains on the ranks of the layout, with as many more as the options say. `hosts`: two hosts, on
/// which half of the ranks are each; nullptr: all ranks are on one.
Overlapped train_divided(const TinyRun& run,
                         const Layout& layout,
                         const RlRun& how,
                         const OnTwoHosts* hosts = nullptr) {
  engine::prepare_process(1);
  const planner::Plan made = run.plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::place(planner::with_data(made, *data));
  const files::TempDir own;
  Overlapped out;
  const auto learn = [&](comm::World& world, engine::ExtraRanks& generators) {
    engine::Engine engine(plan, world, data, &generators);
    if (how.resume.empty()) {
      engine.initialize_weights();
    } else {
      engine.load(checkpoint::Checkpoint(how.resume));
    }
    engine.begin_experience(how.run_dir);
    Overlapped mine;
    while (engine.step() < how.steps) {
      const engine::StepReport report = engine.train_step();
      mine.trace.losses.push_back(report.loss);
      mine.trace.grad_norms.push_back(report.grad_norm);
      auto& told = mine.told.emplace_back();
      for (const engine::Metric& metric : report.metrics) {
        if (!metric.name.ends_with("_waited")) told[metric.name] = metric.mean;
      }
      EXPECT_NE(engine::find_metric(report.metrics, "learners_waited"), nullptr);
      if (std::ranges::find(how.save_at, report.step) != how.save_at.end()) engine.save(how.root);
    }
    const std::filesystem::path saved = engine.save(own.path() / "end");
    if (world.is_leader()) {
      mine.trace.digest = checkpoint::Checkpoint(saved).digest();
      out = std::move(mine);
    }
    engine.finish();
    return 7;
  };
  comm::run_threads(plan.ranks() + plan.data().task->extra_ranks(), [&](comm::World& job) {
    at::set_num_threads(1);
    const std::unique_ptr<comm::World> apart = hosts != nullptr ? (*hosts)(job) : nullptr;
    EXPECT_EQ(rlhf::run_divided(plan, apart ? *apart : job, *data->train, learn), 7);
  });
  return out;
}

std::vector<std::string> ledger_of(const std::filesystem::path& folder) {
  std::vector<std::string> out;
  std::ifstream in(folder / "rollouts.jsonl");
  for (std::string line; std::getline(in, line);)
    out.push_back(line);
  return out;
}

void expect_same(const Overlapped& a, const Overlapped& b) {
  expect_same_bits(a.trace, b.trace);
  EXPECT_EQ(a.told, b.told);
}

const std::string kCases[] = {R"("algorithm": "grpo", "samples": 4, "kl": {"coefficient": 0.05})",
                              R"("algorithm": "dapo", "samples": 4, "mini_batches": 2)",
                              R"("algorithm": "ppo", "samples": 1, "critic": {"lr": 1e-3})",
                              R"("samples": 4, "parity": "exact", "iterations": 2)"};

TEST(RlOverlap, IsTheSameOnAnyRanks) {
  for (const std::string& more : kCases) {
    SCOPED_TRACE(more);
    const std::string critic =
        more.find("critic") == std::string::npos ? "" : R"(, "models": {"critic": {"ranks": [1]}})";
    const TinyRun run = reinforcing(some_prompts(), options(more)),
                  two = reinforcing(some_prompts(), options(more + critic, 2));
    const Overlapped one =
        train_divided(run, {.ranks = 1, .accumulation = 4, .stage = 0}, {.steps = 4});

    expect_same(one, train_divided(run, {.ranks = 2, .accumulation = 2, .stage = 1}, {.steps = 4}));
    expect_same(one, train_divided(two, {.ranks = 2, .accumulation = 2, .stage = 3}, {.steps = 4}));
  }
}

// The ranks that write share layers, whatever those that learn do.
TEST(RlOverlap, WritersMayShareLayers) {
  const TinyRun run =
                    reinforcing(some_prompts(), options(R"("samples": 4, "rollout_tensor": 2)", 2)),
                more =
                    reinforcing(some_prompts(), options(R"("samples": 4, "rollout_tensor": 2)", 4));
  const Layout one{.ranks = 1, .accumulation = 4, .stage = 0};
  const Overlapped two = train_divided(run, one, {.steps = 3});

  expect_same(two, train_divided(more, {.ranks = 2, .accumulation = 2, .stage = 3}, {.steps = 3}));
  const Overlapped shared =
      train_divided(run, {.ranks = 2, .accumulation = 4, .stage = 0, .tensor = 2}, {.steps = 3});
  EXPECT_LT(shared.told.at(0).at("parity_max"), 1e-4);
}

// Learning on the first host and writing on the second one; both, or one of them, on both hosts.
TEST(RlOverlap, IsTheSameOnTwoHosts) {
  const std::string more = kCases[2];
  const auto run = [&](int writers) { return reinforcing(some_prompts(), options(more, writers)); };
  const Overlapped one =
      train_divided(run(1), {.ranks = 1, .accumulation = 4, .stage = 0}, {.steps = 3});

  struct Ranks {
    int learn, write, stage;
  };
  for (const Ranks& ranks : {Ranks{1, 1, 0}, Ranks{2, 2, 3}, Ranks{4, 2, 1}, Ranks{1, 3, 0}}) {
    SCOPED_TRACE(std::to_string(ranks.learn) + " learn and " + std::to_string(ranks.write));
    const OnTwoHosts hosts;
    const Layout layout{
        .ranks = ranks.learn, .accumulation = 4 / ranks.learn, .stage = ranks.stage};
    expect_same(one, train_divided(run(ranks.write), layout, {.steps = 3}, &hosts));
    EXPECT_GT(hosts.bytes_sent(), 0U);
  }
}

// The ranks that learn are a part of the job, and the reference is on a part of them.
TEST(RlOverlap, AReferenceMayHaveRanksOfItsOwn) {
  const std::string more = R"("samples": 4, "kl": {"coefficient": 0.05})";
  const Layout two{.ranks = 2, .accumulation = 2, .stage = 1};
  const Overlapped all =
      train_divided(reinforcing(some_prompts(), options(more)), two, {.steps = 3});

  for (const char* ranks : {"[0]", "[1]"}) {
    const TinyRun run = reinforcing(
        some_prompts(),
        options(more + R"(, "models": {"reference": {"ranks": )" + std::string(ranks) + "}}"));
    expect_same(all, train_divided(run, two, {.steps = 3}));
  }
}

TEST(RlOverlap, ARolloutIsWrittenByThePolicyBeforeTheLastRollout) {
  const files::TempDir folder;
  const TinyRun run = reinforcing(some_prompts(), options(R"("samples": 4, "mini_batches": 2)"));

  const Overlapped made =
      train_divided(run, {.ranks = 1, .accumulation = 4}, {.steps = 6, .run_dir = folder.path()});

  // The policy of the first rollout learns from it.
  const std::vector<double> staleness = {0, 1, 2, 3, 2, 3};
  for (std::size_t i = 0; i < staleness.size(); ++i) {
    EXPECT_EQ(made.told[i].at("staleness"), staleness[i]);
    EXPECT_EQ(made.told[i].contains("ratio"), i > 1);
    EXPECT_EQ(made.told[i].contains("parity_max"), i < 2);
    if (i < 2) continue;
    EXPECT_NEAR(made.told[i].at("ratio"), 1.0, 0.1);
    EXPECT_GT(made.told[i].at("moved"), 0.0);
    EXPECT_GE(made.told[i].at("ratio_max"), made.told[i].at("ratio"));
  }
  std::map<std::int64_t, std::int64_t> policies;
  for (const std::string& text : ledger_of(folder.path())) {
    const json::Value line = json::parse(text, "ledger");
    if (line.find("kind")->as_string() != "completion") continue;
    const std::int64_t version = *line.find("version")->as_integer();
    const json::Value* const policy = line.find("policy");
    policies[version] = policy == nullptr ? version : *policy->as_integer();
  }
  // The last rollout was under way when the run ended, and its checkpoint needs it.
  EXPECT_EQ(policies, (std::map<std::int64_t, std::int64_t>{{0, 0}, {2, 0}, {4, 2}, {6, 4}}));
}

// The tokens of the second rollout are those that the initial policy writes, and those of the third
// that of the policy after the first rollout: runs of one kind of ranks have them with their seeds.
TEST(RlOverlap, TheFirstRolloutIsThatOfAlternatingRanks) {
  const files::TempDir overlapped, alternating;
  const std::string more = R"("samples": 4)";
  const TinyRun run = reinforcing(some_prompts(), options(more));
  TinyRun plain = reinforcing(
      some_prompts(),
      R"({"rewards": [{"type": "regex", "pattern": "[@-~]"}, {"type": "length", "max": 3, "weight": 0.5}],
          "max_new_tokens": 4, "prompts_at_once": 2, )" +
          more + "}");
  const Overlapped one = train_divided(
      run, {.ranks = 1, .accumulation = 4}, {.steps = 2, .run_dir = overlapped.path()});
  const Trace two =
      train(plain, {.ranks = 1, .accumulation = 4}, {.steps = 2, .run_dir = alternating.path()});

  EXPECT_EQ(one.trace.losses[0], two.losses[0]);
  EXPECT_EQ(one.trace.grad_norms[0], two.grad_norms[0]);
  EXPECT_NE(one.trace.losses[1], two.losses[1]);
}

TEST(RlOverlap, ResumesToTheBit) {
  for (const std::string& more : {std::string(R"("samples": 4)"),
                                  std::string(R"("samples": 2, "iterations": 2)"),
                                  kCases[2]}) {
    SCOPED_TRACE(more);
    const TinyRun run = reinforcing(some_prompts(), options(more));
    const Layout layout{.ranks = 2, .accumulation = 2, .stage = 1},
        other{.ranks = 1, .accumulation = 4, .stage = 0};
    const files::TempDir whole, root;
    const Overlapped all = train_divided(
        run, layout, {.steps = 6, .run_dir = whole.path(), .root = root.path(), .save_at = {2, 3}});
    const std::vector<std::string> ledger = ledger_of(whole.path());
    const std::vector<std::filesystem::path> saved = checkpoint::list(root.path());
    ASSERT_EQ(saved.size(), 2U);
    for (const std::filesystem::path& from : saved) {
      SCOPED_TRACE(from);
      const Overlapped rest =
          train_divided(run, other, {.steps = 6, .run_dir = whole.path(), .resume = from});

      EXPECT_EQ(rest.trace.digest, all.trace.digest);
      const auto offset = static_cast<std::ptrdiff_t>(all.told.size() - rest.told.size());
      EXPECT_EQ(rest.told, Told(all.told.begin() + offset, all.told.end()));
      EXPECT_EQ(ledger_of(whole.path()), ledger);
    }
  }
}

// Ranks that write have whole layers, so that the first rollout is that of any layout; later ones
// are those of policies that differ by roundings.
TEST(RlOverlap, RanksThatLearnMayShareLayers) {
  const std::string more = R"("samples": 4, "kl": {"coefficient": 0.05})";
  const files::TempDir whole_dir, shared_dir, both_dir;
  const TinyRun run = reinforcing(some_prompts(), options(more)),
                two = reinforcing(some_prompts(), options(more, 2));
  const Overlapped whole = train_divided(run,
                                         {.ranks = 1, .accumulation = 4},
                                         {.steps = 3, .run_dir = whole_dir.path()}),
                   shared = train_divided(run,
                                          {.ranks = 2, .accumulation = 4, .tensor = 2},
                                          {.steps = 3, .run_dir = shared_dir.path()}),
                   both = train_divided(two,
                                        {.ranks = 4, .accumulation = 2, .stage = 3, .tensor = 2},
                                        {.steps = 3, .run_dir = both_dir.path()});

  // The first two rollouts are written by the initial policy.
  const auto drawn = [](const std::filesystem::path& folder) {
    std::vector<std::string> out;
    for (const std::string& text : ledger_of(folder)) {
      const json::Value line = json::parse(text, "ledger");
      if (line.find("kind")->as_string() == "completion" &&
          *line.find("version")->as_integer() <= 1)
        out.push_back(text);
    }
    return out;
  };
  ASSERT_FALSE(drawn(whole_dir.path()).empty());
  EXPECT_EQ(drawn(shared_dir.path()), drawn(whole_dir.path()));
  expect_same(shared, both);
  EXPECT_EQ(ledger_of(shared_dir.path()), ledger_of(both_dir.path()));
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_NEAR(shared.trace.losses[i], whole.trace.losses[i], 1e-4) << i;
  EXPECT_GT(shared.told[2].at("moved"), 0.0) << "the weights that were sent are those of training";
  EXPECT_NEAR(shared.told[2].at("ratio"), 1.0, 0.1);
}

TEST(RlOverlap, NeedsRanksThatWrite) {
  const TinyRun run = reinforcing(some_prompts(), options(R"("samples": 4)"));
  try {
    (void)train(run, {.ranks = 1, .accumulation = 4}, {.steps = 1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
    EXPECT_THAT(error.what(), HasSubstr("rl.overlap"));
  }
}

TEST(RlOverlap, ThePlanReportsTheMemoryOfBothKindsOfRanks) {
  const auto plan_of = [](int writers) {
    const planner::PlanWithData plan = planner::place(planner::PlanWithData(
        reinforcing(some_prompts(), options(R"("samples": 4)", writers)).plan({.ranks = 2}), {}));
    return plan;
  };
  const planner::Plan one = plan_of(1), three = plan_of(3);
  EXPECT_THAT(one.notes().back(), HasSubstr("2 ranks learn and 1 only writes rollouts"));
  EXPECT_THAT(three.notes().back(), HasSubstr("3 only write rollouts"));
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 32;
  const std::uint64_t taken = kMuch - rlhf::memory_beside_generators(one, kMuch, 1);
  EXPECT_EQ(taken, static_cast<std::uint64_t>(rlhf::generator_bytes(one)));
  EXPECT_EQ(kMuch - rlhf::memory_beside_generators(three, kMuch, 3), 3 * taken);
  EXPECT_THROW((void)rlhf::memory_beside_generators(three, 3 * taken, 3), Error);
}

TEST(RlOverlap, IsRefusedWithWhatItDoesNotCombineWith) {
  const auto refusal = [](const std::string& rl, const Layout& layout = {}) -> std::string {
    try {
      const planner::PlanWithData plan =
          planner::place(planner::PlanWithData(reinforcing(some_prompts(), rl).plan(layout), {}));
      return "accepted";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_THAT(refusal(options(R"("samples": 4, "dynamic_rounds": 2)")),
              HasSubstr("dynamic_rounds"));
  for (const char* key : {"use_node_local_storage", "peer_copies"}) {
    TinyRun run = reinforcing(some_prompts(), options(R"("samples": 4)"));
    run.set("checkpoint." + std::string(key), key[0] == 'u' ? "true" : "1")
        .set("run.restarts", "1");
    const planner::PlanWithData plan(run.plan({.ranks = 2}), {});
    EXPECT_NO_THROW((void)planner::place(plan));
    try {
      (void)planner::place(plan, {.ranks_of_each = 2});
      ADD_FAILURE() << "accepted " << key;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(key));
    }
  }
  EXPECT_THAT(refusal(R"({"rewards": [{"type": "length", "max": 3}], "rollout_ranks": 2})"),
              HasSubstr("all ranks write rollouts"));
  EXPECT_THAT(refusal(R"({"rewards": [{"type": "length", "max": 3}], "overlap": 2})"),
              HasSubstr("overlap"));
  EXPECT_THAT(refusal(options(R"("samples": 4, "parity": "exact")"), {.ranks = 2, .tensor = 2}),
              HasSubstr("1 ranks share each layer in rollouts and 2 in training"));
}

}  // namespace
}  // namespace tessera::test

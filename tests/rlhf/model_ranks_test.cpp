// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// A reference, reward models and a critic with a tensor-parallel size of their own, and on ranks of
// their own.
#include "tessera/rlhf/model_ranks.h"

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rlhf/support.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/memory/ledger.h"
#include "tessera/planner/course.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/critic.h"
#include "tessera/rlhf/layouts.h"
#include "tessera/rlhf/plan.h"
#include "tessera/rlhf/read_model.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kStepsOnRanks = 3;
const Layout kFour{.ranks = 4, .accumulation = 1, .stage = 1},
    kFourSharing{.ranks = 4, .accumulation = 2, .stage = 1, .tensor = 2};

/// PPO with a reference and the rewards of a model.
class RlModelRanks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    judge_ = std::make_unique<files::TempDir>();
    save_reward_model(judge_->path());
  }
  static void TearDownTestSuite() { judge_.reset(); }

  static TinyRun with_models(const std::string& models) {
    return reinforcing(
        some_prompts(),
        R"({"algorithm": "ppo", "max_new_tokens": 4, "prompts_at_once": 2, "critic": {"lr": 1e-3},
            "rewards": [{"type": "model", "from": ")" +
            judge_->path().string() + R"("}, {"type": "length", "max": 3}], "models": {)" + models +
            "}}");
  }
  static Trace trained(const std::string& models,
                       const Layout& layout,
                       const std::filesystem::path& run_dir = {}) {
    return train(with_models(models), layout, {.steps = kStepsOnRanks, .run_dir = run_dir});
  }

  static std::unique_ptr<files::TempDir> judge_;
};
std::unique_ptr<files::TempDir> RlModelRanks::judge_;

void expect_near_traces(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], 1e-4) << i;
    EXPECT_NEAR(a.grad_norms[i], b.grad_norms[i], 1e-3) << i;
  }
}

// Whole layers are computed by the same sums on any ranks.
TEST_F(RlModelRanks, RanksOfItsOwnChangeNoBit) {
  const Trace plain = trained("", kFour);

  for (const char* models :
       {R"("reward": {"tensor": 1})",
        R"("reference": {"ranks": [0]}, "reward": {"ranks": [1, 2]}, "critic": {"ranks": [3]})",
        R"("reference": {"ranks": [1, 2, 3], "zero_stage": 0}, "reward": {"ranks": [0]},
           "critic": {"ranks": [1, 2], "zero_stage": 3})",
        R"("reference": {"ranks": [2, 3]}, "reward": {"ranks": [2, 3], "zero_stage": 0},
           "critic": {"ranks": [0, 1, 2], "zero_stage": 2})"}) {
    SCOPED_TRACE(models);
    expect_same_bits(plain, trained(models, kFour));
  }
  expect_same_bits(
      plain,
      trained(R"("reference": {"ranks": [1]}, "reward": {"tensor": 1}, "critic": {"ranks": [1]})",
              {.ranks = 2, .accumulation = 2, .stage = 3}));
}

// Weights rest on the disk while no block uses them, block by block.
TEST_F(RlModelRanks, WeightsOnADiskChangeNoBit) {
  const files::TempDir disk;
  const std::string rests =
      R"("offload": {"device": "nvme", "nvme_path": ")" + disk.path().string() + R"("})";
  for (const Layout& layout :
       {Layout{.ranks = 2, .accumulation = 2, .stage = 1}, Layout{.ranks = 1, .accumulation = 4}}) {
    expect_same_bits(
        trained("", layout),
        trained(fmt::format(R"("reference": {{{0}}}, "reward": {{{0}, "zero_stage": 3}},
                               "critic": {{{0}, "zero_stage": 3}})",
                            rests),
                layout));
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk.path())) << "a file remains on the disk";
}

// Sums of shared layers are rounded otherwise, and in the same way on any ranks.
TEST_F(RlModelRanks, AModelMayShareLayersThatThePolicyDoesNot) {
  const Trace plain = trained("", kFour);
  const std::string all =
      R"("reference": {"tensor": 2}, "reward": {"tensor": 2}, "critic": {"tensor": 2})";
  const Trace shared = trained(all, kFour);

  expect_near_traces(plain, shared);
  EXPECT_NE(plain.metrics, shared.metrics);
  expect_same_bits(shared, trained(all, {.ranks = 2, .accumulation = 2, .stage = 3}));
  expect_same_bits(shared,
                   trained(R"("reference": {"tensor": 2, "ranks": [0, 1]},
                              "reward": {"tensor": 2, "ranks": [2, 3]},
                              "critic": {"tensor": 2, "ranks": [1, 2]})",
                           kFour));
  expect_same_bits(shared,
                   trained(R"("reference": {"tensor": 2, "zero_stage": 0},
                              "reward": {"tensor": 2, "ranks": [1, 2]},
                              "critic": {"tensor": 2, "zero_stage": 3})",
                           kFour));
}

/// The log-probabilities of the reference in the ledger, the scores, and the values of the critic,
/// by the ids of a completion of the first rollout.
using Said = std::map<std::string, std::vector<std::string>>;
Said said_of(const std::filesystem::path& folder) {
  std::map<std::int64_t, std::string> ids;
  Said out;
  std::ifstream in(folder / "rollouts.jsonl");
  for (std::string text; std::getline(in, text);) {
    const json::Value line = json::parse(text, "ledger");
    if (*line.find("version")->as_integer() != 0) continue;
    const std::int64_t number = *line.find("number")->as_integer();
    if (line.find("kind")->as_string() == "completion") {
      ids[number] = line.find("prompt_ids")->dump() + line.find("ids")->dump();
    } else {
      std::vector<std::string>& said = out[ids.at(number)];
      for (const char* key : {"reference", "rewards", "values"})
        said.push_back(line.find(key)->dump());
    }
  }
  return out;
}

// With its own size a model has the bits of a run whose policy has that size.
TEST_F(RlModelRanks, AModelMayHaveWholeLayersThatThePolicyShares) {
  const files::TempDir whole_dir, shared_dir, own_dir;
  const Trace whole = trained("", kFour, whole_dir.path());
  const Trace shared = trained("", kFourSharing, shared_dir.path());
  const std::string own = R"("reference": {"tensor": 1}, "reward": {"tensor": 1, "ranks": [3]},
                             "critic": {"tensor": 1, "ranks": [0, 1, 2]})";
  const Trace mixed = trained(own, kFourSharing, own_dir.path());

  expect_near_traces(whole, mixed);
  expect_near_traces(shared, mixed);
  EXPECT_NE(shared.metrics, mixed.metrics);
  const Said said = said_of(whole_dir.path()), by_own = said_of(own_dir.path());
  int same = 0;
  for (const auto& [ids, values] : by_own) {
    const auto found = said.find(ids);  // roundings of the policy may change a token
    if (found == said.end()) continue;
    EXPECT_EQ(found->second, values) << ids;
    ++same;
  }
  EXPECT_GT(same, 4);
}

// The critic's part of a checkpoint depends on no ranks.
TEST_F(RlModelRanks, ACriticIsResumedOnOtherRanks) {
  const std::string apart = R"("critic": {"ranks": [3]})";
  const files::TempDir folder;
  const Trace whole = train(with_models(apart),
                            kFour,
                            {.steps = kStepsOnRanks,
                             .run_dir = folder.path(),
                             .root = folder.path() / "c",
                             .save_at = {1, 2}});
  const auto resumed = [&](const std::string& models, const Layout& layout, const char* step) {
    return train(
        with_models(models),
        layout,
        {.steps = kStepsOnRanks, .run_dir = folder.path(), .resume = folder.path() / "c" / step});
  };

  for (const char* models :
       {apart.c_str(), R"("critic": {"ranks": [1, 2], "zero_stage": 2})", ""}) {
    SCOPED_TRACE(models);
    const Trace after = resumed(models, kFour, "step-00000001");
    EXPECT_EQ(after.digest, whole.digest);
    EXPECT_EQ(after.metrics.back(), whole.metrics.back());
  }
  EXPECT_EQ(resumed("", {.ranks = 1, .accumulation = 4, .stage = 0}, "step-00000002").digest,
            whole.digest);
  // Ranks that share its layers go on with the same critic.
  const Trace shared = resumed(
      R"("critic": {"tensor": 2})", {.ranks = 2, .accumulation = 2, .stage = 1}, "step-00000001");
  EXPECT_NEAR(shared.losses.back(), whole.losses.back(), 1e-4);
  EXPECT_NE(shared.digest, whole.digest);
}

TEST_F(RlModelRanks, ACriticIsInTheMemoryOfItsRanksAlone) {
  engine::prepare_process(1);
  const TinyRun run = with_models(R"("critic": {"ranks": [1], "zero_stage": 0})");
  const planner::Plan made = run.plan(kFour);
  const planner::PlanWithData plan = planner::with_data(made, *engine::open_data(made, {}));
  const tasks::RlOptions& options = tasks::as_rl(plan.data().task.get())->options();
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    const auto held = [] {
      std::int64_t bytes = 0;
      for (const std::int64_t of_tag : memory::current_ledger().usage().current)
        bytes += of_tag;
      return bytes;
    };
    const std::int64_t before = held();
    rlhf::Critic critic(plan, options, world);
    critic.initialize_weights();
    if (world.rank() == 1) {
      EXPECT_GE(held() - before, 4 * plan.model().resolved.num_parameters);
    } else {
      EXPECT_EQ(held(), before);
      EXPECT_TRUE(critic.pieces().empty());
    }
  });
}

TEST_F(RlModelRanks, ThePlanReportsTheRanksAndTheirMemory) {
  const auto plan_of = [](const std::string& models, const Layout& layout) {
    const planner::PlanWithData plan =
        planner::place(planner::PlanWithData(with_models(models).plan(layout), {}));
    return std::pair(plan.notes().back(), plan.needs().beside);
  };
  const auto [text, bytes] =
      plan_of(R"("reference": {"tensor": 2}, "reward": {"ranks": [2, 3]})", kFour);
  EXPECT_THAT(text, HasSubstr("reference (fp32, sharded, 2 ranks share its layers)"));
  EXPECT_THAT(text, HasSubstr("(fp32, sharded, on ranks 2 to 3 alone)"));
  const auto [one, least] =
      plan_of(R"("reference": {"zero_stage": 0}, "reward": {"ranks": [1]})", kFour);
  EXPECT_THAT(one, HasSubstr("(fp32, on rank 1 alone)"));
  // A whole model on one of four ranks is a quarter of one on each.
  const auto parameters =
      static_cast<double>(with_models("").plan(kFour).model().resolved.num_parameters);
  const auto each =
      plan_of(R"("reference": {"zero_stage": 0}, "reward": {"zero_stage": 0})", kFour);
  EXPECT_NEAR(static_cast<double>(each.second - least), 3 * parameters, 0.05 * parameters);

  const auto [critic, on_one] = plan_of(R"("critic": {"ranks": [3], "zero_stage": 0})", kFour);
  EXPECT_THAT(critic, HasSubstr("critic (fp32, on rank 3 alone)"));
  EXPECT_THAT(critic, HasSubstr("; rank 3 has most, "));
  const auto on_all = plan_of(R"("critic": {"zero_stage": 0})", kFour);
  EXPECT_THAT(on_all.first, Not(HasSubstr("has most")));
  // Weights and two moments, on one rank instead of four, and gradients with their buffers.
  EXPECT_GT(static_cast<double>(on_all.second - on_one), 3 * 3 * parameters);
  EXPECT_LT(static_cast<double>(on_all.second - on_one), 4 * 4 * parameters);
  EXPECT_THAT(plan_of(R"("critic": {"tensor": 2})", kFour).first,
              HasSubstr("critic (fp32, ZeRO stage 1, 2 ranks share its layers)"));
  // Two hosts: the second one has the critic.
  const planner::PlanWithData plan = planner::place(planner::PlanWithData(
      with_models(R"("critic": {"ranks": [2, 3], "zero_stage": 0})").plan(kFour), {}));
  const std::int64_t together = plan.needs().beside;
  const std::int64_t apart = planner::place(plan, {.ranks_of_each = 2}).needs().beside;
  EXPECT_GT(static_cast<double>(apart - together), 1.5 * 4 * parameters / 2);
}

TEST_F(RlModelRanks, ThePlanCountsTheRoomOnTheDisk) {
  const files::TempDir disk;
  const std::string rests =
      R"("offload": {"device": "nvme", "nvme_path": ")" + disk.path().string() + R"("})";
  const auto needs = [&](const std::string& models) {
    TinyRun run = with_models(models);
    run.set("aio.block_size", "4096")
        .set("zero_optimization.stage3_param_persistence_threshold", "0");
    return planner::place(planner::PlanWithData(run.plan(kFour), {})).needs().disk;
  };
  const auto parameters = with_models("").plan(kFour).model().resolved.num_parameters;
  const auto all = needs(fmt::format(
      R"("reference": {{{0}}}, "reward": {{{0}, "ranks": [1, 2]}}, "critic": {{{0}, "zero_stage": 3}})",
      rests));

  EXPECT_TRUE(needs("").empty());
  ASSERT_EQ(all.size(), 3U);
  const char* const keys[] = {"reference", "reward", "critic"};
  const int ranks[] = {4, 2, 4};
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].key, fmt::format("rl.models.{}.offload.nvme_path", keys[i]));
    EXPECT_THAT(all[i].what, HasSubstr("weights of the "));
    EXPECT_EQ(all[i].folder, disk.path().string());
    EXPECT_EQ(all[i].saved, i == 2);
    EXPECT_GE(all[i].bytes * ranks[i], i == 1 ? 4096 : 4 * parameters) << keys[i];
  }
}

TEST_F(RlModelRanks, RefusesWhatCannotBe) {
  const auto refusal = [](const std::string& models, const Layout& layout = kFour) -> std::string {
    try {
      const planner::PlanWithData plan =
          planner::place(planner::PlanWithData(with_models(models).plan(layout), {}));
      return "accepted";
    } catch (const Error& error) {
      return error.text();
    }
  };
  EXPECT_EQ(refusal(R"("reward": {"tensor": 4})"), "accepted");
  EXPECT_THAT(refusal(R"("reward": {"tensor": 3})"), HasSubstr("groups of 3"));
  EXPECT_THAT(refusal(R"("reward": {"ranks": [1, 2, 3], "tensor": 2})"), HasSubstr("groups of 2"));
  EXPECT_THAT(refusal(R"("reference": {"ranks": [3, 4]})"), HasSubstr("has a rank 4, and 4 ranks"));
  EXPECT_THAT(refusal(R"("reference": {"ranks": [0, 2]})"), HasSubstr("consecutive"));
  EXPECT_THAT(refusal(R"("reference": {"ranks": []})"), HasSubstr("consecutive"));
  EXPECT_THAT(refusal(R"("reference": {"ranks": 2})"),
              HasSubstr("models.reference.ranks: it is 2"));
  EXPECT_THAT(refusal(R"("reward": {"tensor": 8})", {.ranks = 8, .accumulation = 1}),
              HasSubstr("do not divide among 8 ranks"));
  EXPECT_EQ(refusal(R"("critic": {"tensor": 2, "ranks": [1, 2]})"), "accepted");
  EXPECT_THAT(refusal(R"("critic": {"tensor": 3})"),
              HasSubstr("rl.models.critic: 4 ranks cannot be divided into groups of 3"));
  EXPECT_THAT(refusal(R"("critic": {"ranks": [4]})"),
              HasSubstr("rl.models.critic: ranks [4] has a rank 4, and 4 ranks"));
  EXPECT_THAT(refusal(R"("critic": {"ranks": [1, 0]})"),
              HasSubstr("models.critic.ranks: it is [1,0]"));
  EXPECT_THAT(refusal(R"("critic": {"tensor": 8})", {.ranks = 8, .accumulation = 1}),
              HasSubstr("the layers of the critic do not divide among 8 ranks"));
  EXPECT_THAT(refusal(R"("critic": {"offload": {"device": "nvme"}})"),
              HasSubstr("models.critic.offload.nvme_path"));
  EXPECT_THAT(refusal(R"("critic": {"offload": {"device": "nvme", "nvme_path": "/tmp"}})"),
              HasSubstr("set rl.models.critic.zero_stage to 3"));
  EXPECT_THAT(refusal(R"("reward": {"offload": {"device": "nvme", "nvme_path": "/no/such"}})"),
              HasSubstr("rl.models.reward.offload.nvme_path: /no/such is not a folder"));
  EXPECT_THAT(refusal(R"("reference": {"zero_stage": 0, "offload": {"device": "nvme",
                         "nvme_path": "/tmp"}})"),
              HasSubstr("set models.reference.zero_stage to 3"));
  EXPECT_THAT(refusal(R"("critic": {"trunk": "reward"}, "reward": {"ranks": [0]})"),
              HasSubstr("shares the critic's trunk"));
}

// The reference of an adapter's run is the policy itself.
TEST_F(RlModelRanks, TheBaseOfAnAdapterIsOnThePolicysRanks) {
  TinyRun run = with_models(R"("reference": {"ranks": [0]})");
  run.set("adapter", R"({"type": "lora", "r": 2})");
  try {
    const planner::PlanWithData plan = planner::place(planner::PlanWithData(run.plan(kFour), {}));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("the policy without its adapter"));
  }
}

// A command may have fewer ranks than the training.
TEST_F(RlModelRanks, SaysWhichRanksThereAre) {
  const auto has = [](const std::string& reward, const Layout& layout) {
    const planner::Plan plan = with_models("\"reward\": " + reward).plan(layout);
    return rlhf::has_ranks(tasks::as_rl(plan.data().task.get())->options().models.reward, plan);
  };
  EXPECT_TRUE(has(R"({"ranks": [2, 3], "tensor": 2})", kFour));
  EXPECT_FALSE(has(R"({"ranks": [2, 3]})", {.ranks = 2, .accumulation = 2}));
  EXPECT_FALSE(has(R"({"tensor": 2})", {.ranks = 1, .accumulation = 4}));
}

}  // namespace
}  // namespace tessera::test

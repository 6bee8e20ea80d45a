// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Models beside a policy: a critic with an adapter, and one whose frozen weights are those of the
// reward model.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/memory/ledger.h"
#include "tessera/planner/course.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/critic.h"
#include "tessera/rlhf/plan.h"
#include "tessera/rlhf/reward_values.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kSteps = 3;
const Layout kOne{.ranks = 1, .accumulation = 4, .stage = 0};
const char* const kLora = R"("adapter": {"type": "lora", "r": 2, "alpha": 16})";

/// PPO with the rewards of a model.
class RlModels : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    judge_ = std::make_unique<files::TempDir>();
    save_reward_model(judge_->path());
  }
  static void TearDownTestSuite() { judge_.reset(); }

  static TinyRun with_critic(const std::string& critic,
                             const std::string& from = judge_->path().string()) {
    std::string prompts;
    for (int i = 0; i < 12; ++i)
      prompts +=
          R"({"prompt": ")" + std::string(static_cast<std::size_t>(1 + i % 3), 'a') + "\"}\n";
    return reinforcing(prompts,
                       R"({"algorithm": "ppo", "max_new_tokens": 4, "prompts_at_once": 2,
                           "critic": {"lr": 1e-2, "from": ")" +
                           from + R"("}, "rewards": [{"type": "model", "from": ")" + from +
                           R"("}], "models": {"critic": {)" + critic + "}}}");
  }

  static std::unique_ptr<files::TempDir> judge_;
};
std::unique_ptr<files::TempDir> RlModels::judge_;

/// The names of the critic's tensors in a checkpoint.
std::vector<std::string> tensors_of_critic(const std::filesystem::path& saved) {
  std::vector<std::string> out;
  const checkpoint::Checkpoint opened(saved);
  for (const auto& tensor : opened.tensors()) {
    if (tensor.name.starts_with("critic.")) out.push_back(tensor.name);
  }
  return out;
}

std::string refusal(const TinyRun& run) {
  try {
    const planner::PlanWithData plan = planner::place(planner::PlanWithData(run.plan(kOne), {}));
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST_F(RlModels, ACriticTrainsAnAdapterAndItsHead) {
  const TinyRun run = with_critic(kLora);
  const files::TempDir folder;
  const Trace one = train(
      run,
      kOne,
      {.steps = kSteps, .run_dir = folder.path(), .root = folder.path() / "c", .save_at = {1}});

  expect_same_bits(one, train(run, {.ranks = 2, .accumulation = 2, .stage = 1}, {.steps = kSteps}));
  expect_same_bits(one, train(run, {.ranks = 4, .accumulation = 1, .stage = 3}, {.steps = kSteps}));
  const std::filesystem::path saved = *checkpoint::newest(folder.path() / "c");
  const std::vector<std::string> names = tensors_of_critic(saved);
  EXPECT_THAT(names, testing::Contains("critic.score.weight"));
  EXPECT_THAT(names, testing::Contains(HasSubstr("lora_A")));
  EXPECT_THAT(names, Not(testing::Contains(HasSubstr("ln_1"))));
  const Trace after = train(run,
                            {.ranks = 2, .accumulation = 2, .stage = 2},
                            {.steps = kSteps, .run_dir = folder.path(), .resume = saved});
  EXPECT_EQ(after.digest, one.digest);
  EXPECT_NE(one.metrics, train(with_critic(""), kOne, {.steps = kSteps}).metrics);

  const auto beside = [](const TinyRun& of) {
    const planner::PlanWithData plan = planner::place(planner::PlanWithData(of.plan(kOne), {}));
    return std::pair(plan.needs().beside, plan.notes().back());
  };
  EXPECT_THAT(beside(run).second, HasSubstr("critic (fp32, lora of rank 2)"));
  EXPECT_LT(beside(run).first, beside(with_critic("")).first);
}

TEST_F(RlModels, AnAdapterOfAnotherBaseIsRefused) {
  const TinyRun run = with_critic(kLora);
  const files::TempDir folder, other;
  (void)train(run, kOne, {.steps = 1, .root = folder.path(), .save_at = {1}});
  save_reward_model(other.path(), "6");

  const RlRun resumed{.steps = 2, .resume = *checkpoint::newest(folder.path())};
  for (const TinyRun& another : {with_critic(kLora, other.path().string()), with_critic("")}) {
    try {
      (void)train(another, kOne, resumed);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("critic"));
    }
  }
}

// The matrices of the policy that are stored in four bits are none of the critic's.
TEST_F(RlModels, APolicyOverPackedWeightsHasACritic) {
  const files::TempDir base;
  (void)TinyRun().set("model.dropout", "0").train({.stage = 0}, 0, base.path());
  const auto packed = [&](const std::string& critic) {
    return with_critic(critic)
        .set("model", R"({"from": ")" + base.path().string() + "\"}")
        .set("adapter", R"({"type": "lora", "r": 2, "quantize_base": "nf4"})");
  };
  auto metrics = metrics_of(packed(""), kOne, 2);
  EXPECT_EQ(metrics["critic_loss"].size(), 2U);
  EXPECT_EQ(metrics_of(packed(kLora), kOne, 2)["critic_loss"].front(),
            metrics["critic_loss"].front());  // the adapter begins as no change
}

TEST_F(RlModels, ASharedTrunkChangesNoBit) {
  const std::string shared = std::string(kLora) + R"(, "trunk": "reward")";
  for (const Layout& layout : {kOne,
                               Layout{.ranks = 2, .accumulation = 2, .stage = 1},
                               Layout{.ranks = 2, .accumulation = 2, .stage = 3},
                               Layout{.ranks = 2, .accumulation = 4, .stage = 0, .tensor = 2}}) {
    expect_same_bits(train(with_critic(kLora), layout, {.steps = kSteps}),
                     train(with_critic(shared), layout, {.steps = kSteps}));
  }
  // The reward model is where the critic is.
  const Layout two{.ranks = 2, .accumulation = 2, .stage = 1};
  expect_same_bits(train(with_critic(kLora), two, {.steps = kSteps}),
                   train(with_critic(shared + R"(, "ranks": [1])"), two, {.steps = kSteps}));
}

// The trunk of a reward model that was trained as an adapter is the merged one.
TEST_F(RlModels, ARewardModelMayBeAnAdapterItself) {
  const files::TempDir judge;
  save_reward_model(judge.path(), "5", R"({"type": "lora", "r": 2, "alpha": 16})");
  const std::string from = judge.path().string(),
                    shared = std::string(kLora) + R"(, "trunk": "reward")";
  expect_same_bits(train(with_critic(kLora, from), kOne, {.steps = kSteps}),
                   train(with_critic(shared, from), kOne, {.steps = kSteps}));
}

// A critic without an adapter learns the final norm and the head.
TEST_F(RlModels, AFrozenTrunkHasAHeadOfItsOwn) {
  const TinyRun run = with_critic(R"("trunk": "reward")");
  const files::TempDir folder;
  const Trace one = train(
      run,
      kOne,
      {.steps = kSteps, .run_dir = folder.path(), .root = folder.path() / "c", .save_at = {1}});

  for (const int stage : {1, 3}) {
    expect_same_bits(
        one, train(run, {.ranks = 2, .accumulation = 2, .stage = stage}, {.steps = kSteps}));
  }
  const std::filesystem::path saved = *checkpoint::newest(folder.path() / "c");
  for (const std::string& name : tensors_of_critic(saved))
    EXPECT_TRUE(name.ends_with("score.weight") || name.find("ln_f") != std::string::npos) << name;
  const Trace after =
      train(run, kOne, {.steps = kSteps, .run_dir = folder.path(), .resume = saved});
  EXPECT_EQ(after.digest, one.digest);
}

/// Two layers, the embedding and the positions of the tiny model, in bytes.
std::int64_t trunk_bytes(const models::Resolved& model) {
  std::int64_t elements = 0;
  for (const nn::BlockSpec& block : model.trunk.blocks) {
    for (const auto& info : nn::declared_by(block))
      elements += info->numel();
  }
  return 4 * elements;
}

TEST_F(RlModels, ASharedTrunkIsInMemoryOnce) {
  const auto allocated = [](const TinyRun& run, const Layout& layout) {
    std::int64_t bytes = 0;
    (void)train(run, layout, {.steps = 1, .see = [&](const engine::StepReport&) {
                                bytes =
                                    memory::current_ledger()
                                        .usage()
                                        .current[static_cast<std::size_t>(memory::Tag::Parameters)];
                              }});
    return bytes;
  };
  const std::string shared = std::string(kLora) + R"(, "trunk": "reward")";
  const std::int64_t trunk = trunk_bytes(engine::find_model(judge_->path())->shape);
  // Allocations are rounded up.
  for (const int ranks : {1, 2}) {
    const Layout layout{.ranks = ranks, .accumulation = 4 / ranks, .stage = ranks == 1 ? 0 : 3};
    // Parameters of stage 3 that are small are whole on both ranks.
    const std::int64_t least = ranks == 1 ? trunk : trunk / 2;
    const std::int64_t saved =
        allocated(with_critic(kLora), layout) - allocated(with_critic(shared), layout);
    EXPECT_GE(saved, least) << ranks;
    EXPECT_LE(saved, 2 * trunk) << ranks;
  }
  const auto beside = [](const TinyRun& run) {
    const planner::PlanWithData plan = planner::place(planner::PlanWithData(run.plan(kOne), {}));
    return std::pair(plan.needs().beside, plan.notes().back());
  };
  EXPECT_EQ(beside(with_critic(kLora)).first - beside(with_critic(shared)).first, trunk);
  EXPECT_THAT(beside(with_critic(shared)).second, HasSubstr("the trunk is the critic's"));
}

TEST_F(RlModels, AScorerReadsTheCriticsWeights) {
  engine::prepare_process(1);
  const TinyRun run = with_critic(R"("trunk": "reward")");
  const planner::Plan made = run.plan(kOne);
  const planner::PlanWithData plan = planner::with_data(made, *engine::open_data(made, {}));
  const tasks::RlOptions& options = tasks::as_rl(plan.data().task.get())->options();
  comm::run_threads(1, [&](comm::World& world) {
    rlhf::Critic critic(plan, options, world);
    critic.initialize_weights();
    const rlhf::Lender lender = critic.lender();
    ASSERT_NE(lender.model, nullptr);
    const auto open = [&](const parallel::ModelInstance* from) {
      auto scorer =
          rlhf::find_scorer(lender.from, *plan.data().tokenizer, plan.data().sequence_length);
      if (from != nullptr) {
        engine::load_model(*scorer, world, *from);
      } else {
        engine::load_model(*scorer, world);
      }
      return scorer;
    };
    const auto sharing = open(lender.model), own = open(nullptr);

    const std::vector<std::int32_t> prompt = {97, 98}, answer = {99, 100, 101};
    const std::vector<rlhf::RowOf> rows = {{prompt, answer}, {answer, prompt}};
    const rlhf::Rows texts = rlhf::rows_of(rows, plan.data().sequence_length, 0);
    EXPECT_EQ(rlhf::scores_of(*sharing, world, texts, 2), rlhf::scores_of(*own, world, texts, 2));
    for (int block = 0; block < sharing->model->num_blocks(); ++block) {
      const bool head = block + 1 == sharing->model->num_blocks();
      for (const int group : sharing->model->groups_of(block)) {
        const auto index = static_cast<std::size_t>(group);
        EXPECT_EQ(sharing->model->groups()[index].borrowed, !head) << block;
        EXPECT_FALSE(own->model->groups()[index].borrowed);
      }
    }
  });
}

TEST_F(RlModels, SaysWhyATrunkCannotBeShared) {
  const std::string shared = R"("trunk": "reward")";
  EXPECT_EQ(refusal(with_critic(shared)), "");
  EXPECT_THAT(refusal(with_critic(
                  shared + R"(, "adapter": {"type": "lora", "r": 2, "quantize_base": "nf4"})")),
              HasSubstr("in fewer bits"));
  EXPECT_THAT(
      refusal(with_critic(shared + R"(, "adapter": {"type": "lora", "r": 2, "bias": "all"})")),
      AllOf(HasSubstr("the adapter trains"), HasSubstr("remove bias")));
  EXPECT_THAT(refusal(with_critic(R"("trunk": "policy")")),
              HasSubstr("models.critic.trunk: unknown"));
  EXPECT_THAT(refusal(reinforcing("{\"prompt\": \"a\"}\n",
                                  R"({"algorithm": "ppo", "rewards": [{"type": "length", "max": 3}],
                                      "models": {"critic": {"trunk": "reward"}}})")),
              HasSubstr("no reward model has a trunk"));
  const std::string judge = judge_->path().string();
  EXPECT_THAT(
      refusal(reinforcing("{\"prompt\": \"a\"}\n",
                          R"({"algorithm": "ppo", "rewards": [{"type": "model", "from": ")" +
                              judge + R"("}], "critic": {"from": "elsewhere"},
                                      "models": {"critic": {"trunk": "reward"}}})")),
      HasSubstr("elsewhere is not one of rl.rewards"));
  EXPECT_THAT(
      refusal(reinforcing("{\"prompt\": \"a\"}\n",
                          R"({"algorithm": "ppo", "rewards": [{"type": "model", "from": ")" +
                              judge + R"("}], "models": {"critic": {"trunk": "reward"},
                                      "reward": {"dtype": "bf16"}}})")),
      HasSubstr("the reward model shares the critic's trunk"));
}

TEST_F(RlModels, NamesWhatIsWrongWithAnAdapter) {
  EXPECT_THAT(refusal(with_critic(R"("adapter": {"type": "lora", "rank": 2})")),
              HasSubstr("rl.models.critic.adapter.rank"));
  EXPECT_THAT(refusal(with_critic(R"("adapter": {"r": 2})")), HasSubstr("the adapter has no type"));
  EXPECT_THAT(refusal(with_critic(R"("adapter": 3)")), HasSubstr("as the section adapter"));
  EXPECT_THAT(refusal(reinforcing("{\"prompt\": \"a\"}\n",
                                  R"({"samples": 2, "kl": {"coefficient": 0.1},
                                      "rewards": [{"type": "length", "max": 3}],
                                      "models": {"reference": {"adapter": {"type": "lora"}}}})")),
              HasSubstr("whose weights are merged"));
}

}  // namespace
}  // namespace tessera::test

// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
// Policies answer prompts and learn: the same on any ranks and after any stop.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/planner/course.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/alarms.h"
#include "tessera/rlhf/plan.h"
#include "tessera/rlhf/replay.h"

namespace tessera::test {
namespace {

using ::testing::HasSubstr;

const char* const kLetters =
    R"("rewards": [{"type": "regex", "pattern": "[@-~]"}, {"type": "length", "max": 3, "weight": 0.5}])";

std::string options(const std::string& more) {
  return std::string("{") + kLetters + R"(, "max_new_tokens": 4, "prompts_at_once": 2, )" + more +
         "}";
}

const std::string kCases[] = {
    options(R"("algorithm": "grpo", "samples": 4, "kl": {"coefficient": 0.05})"),
    options(R"("algorithm": "rloo", "samples": 2, "iterations": 2, "temperature": 0.8)"),
    options(R"("algorithm": "dapo", "samples": 4, "mini_batches": 2, "truncated": "mask")"),
    options(R"("algorithm": "reinforce++", "samples": 1)"),
    options(R"("algorithm": "ppo", "samples": 1, "iterations": 2, "critic": {"lr": 1e-3})"),
    options(R"("preset": "dschat:ppo")"),
    options(
        R"("samples": 2, "dynamic_rounds": 3, "top_k": 40, "top_p": 0.9, "entropy_coefficient": 0.01)"),
    options(
        R"("algorithm": "rloo", "samples": 2, "kl": {"coefficient": 0.05, "target": 0.01, "horizon": 30})"),
    options(R"("samples": 4, "completions_at_once": 3, "cache": "int8")")};

TEST(Rl, IsTheSameOnAnyRanks) {
  for (const std::string& rl : kCases) {
    SCOPED_TRACE(rl);
    const TinyRun run = reinforcing(some_prompts(), rl);
    const Trace one = train(run, {.ranks = 1, .accumulation = 4, .stage = 0}, {.steps = 4});

    expect_same_bits(one, train(run, {.ranks = 2, .accumulation = 2, .stage = 1}, {.steps = 4}));
    expect_same_bits(one, train(run, {.ranks = 4, .accumulation = 1, .stage = 2}, {.steps = 4}));
    expect_same_bits(one, train(run, {.ranks = 2, .accumulation = 2, .stage = 3}, {.steps = 4}));
  }
}

// Sums of ranks that share layers are in another order than one rank's, so that other tokens may be
// drawn; but among the ranks that hold a model together nothing depends on their number.
TEST(Rl, RanksThatShareLayersWriteAndTrain) {
  const std::string program =
      "import json,sys\\nfor l in sys.stdin:\\n v=json.loads(l)\\n "
      "print(json.dumps({'id': v['id'], 'reward': len(v['completion'])}))";
  const std::string command =
      R"({"samples": 2, "max_new_tokens": 4, "rewards": [{"type": "command", "command": ["python3", "-u", "-c", ")" +
      program + "\"]}]}";
  for (const std::string& rl : {options(R"("samples": 4)"), command}) {
    const TinyRun run = reinforcing(some_prompts(), rl);
    const Trace one =
        train(run, {.ranks = 2, .accumulation = 4, .stage = 0, .tensor = 2}, {.steps = 3});

    expect_same_bits(
        one, train(run, {.ranks = 4, .accumulation = 2, .stage = 1, .tensor = 2}, {.steps = 3}));
    auto metrics = metrics_of(run, {.ranks = 2, .accumulation = 4, .tensor = 2}, 3);
    EXPECT_LT(metrics["parity_max"].at(2), 1e-4);
    EXPECT_EQ(metrics["clip_share"].at(0), 0.0);
  }
}

void expect_near_losses(const std::vector<double>& a, const std::vector<double>& b) {
  // Sums of ranks that share layers are in another order than those of one rank.
  constexpr double kRounding = 1e-4;
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], kRounding * (1.0 + std::abs(a[i])));
}

// Reference, critic and reward model are shared as the policy is, and a support is that of the
// whole vocabulary.
TEST(Rl, RanksThatShareLayersShareAllModels) {
  const files::TempDir judge;
  save_reward_model(judge.path());
  const std::string judged = R"({"samples": 2, "max_new_tokens": 4, "rewards": [{"type": "model",
      "from": ")" + judge.path().string() +
                             R"("}], "kl": {"coefficient": 0.05}})";
  for (const std::string& rl :
       {options(R"("algorithm": "ppo", "critic": {"lr": 1e-3})"),
        options(R"("samples": 4, "kl": {"coefficient": 0.05}, "top_k": 40, "top_p": 0.9,
                   "entropy_coefficient": 0.01)"),
        judged}) {
    SCOPED_TRACE(rl);
    const TinyRun run = reinforcing(some_prompts(), rl);
    const Trace alone = train(run, {.ranks = 1, .accumulation = 4, .stage = 0}, {.steps = 3}),
                two = train(
                    run, {.ranks = 2, .accumulation = 4, .stage = 0, .tensor = 2}, {.steps = 3});

    expect_near_losses(alone.losses, two.losses);
    expect_near_losses(alone.grad_norms, two.grad_norms);
    expect_same_bits(
        two, train(run, {.ranks = 4, .accumulation = 2, .stage = 1, .tensor = 2}, {.steps = 3}));
    expect_same_bits(
        two, train(run, {.ranks = 4, .accumulation = 2, .stage = 3, .tensor = 2}, {.steps = 3}));
  }
}

// A layout changes no bit, and a dtype does.
TEST(Rl, ModelsHaveLayoutsOfTheirOwn) {
  const files::TempDir judge;
  save_reward_model(judge.path());
  const auto run = [&](const std::string& models) {
    return reinforcing(some_prompts(),
                       R"({"algorithm": "ppo", "max_new_tokens": 4, "critic": {"lr": 1e-3},
        "rewards": [{"type": "model", "from": ")" +
                           judge.path().string() + R"("}], "models": {)" + models + "}}");
  };
  const Layout two{.ranks = 2, .accumulation = 2, .stage = 1};
  const Trace plain = train(run(""), two, {.steps = 3});

  for (const char* models : {R"("critic": {"zero_stage": 3}, "reference": {"zero_stage": 0})",
                             R"("critic": {"zero_stage": 0}, "reward": {"zero_stage": 0})",
                             R"("critic": {"zero_stage": 2, "dtype": "fp32"})"}) {
    SCOPED_TRACE(models);
    expect_same_bits(plain, train(run(models), two, {.steps = 3}));
  }
  for (const char* models : {R"("critic": {"dtype": "bf16"})",
                             R"("reference": {"dtype": "bf16"})",
                             R"("reward": {"dtype": "bf16"})"}) {
    SCOPED_TRACE(models);
    EXPECT_NE(plain.metrics, train(run(models), two, {.steps = 3}).metrics);
  }
  const auto note = [&](const std::string& models) {
    const planner::PlanWithData plan =
        planner::place(planner::PlanWithData(run(models).plan(two), {}));
    return std::pair(plan.notes().back(), plan.needs().beside);
  };
  const auto [sharded, least] = note(R"("reference": {"dtype": "bf16"})");
  EXPECT_THAT(sharded, HasSubstr("reference (bf16, sharded)"));
  EXPECT_THAT(sharded, HasSubstr("critic (fp32, ZeRO stage 1)"));
  const auto [whole, most] = note(R"("reference": {"zero_stage": 0}, "critic": {"zero_stage": 0})");
  EXPECT_THAT(whole, HasSubstr("reference (fp32, whole on each data-parallel rank)"));
  EXPECT_GT(most, least);
}

// The loss of an fp16 policy is scaled; its critic is not of that dtype.
TEST(Rl, APolicyInFp16HasACriticInFp32) {
  TinyRun run = reinforcing(some_prompts(), options(R"("algorithm": "ppo")"));
  run.set("fp16", R"({"enabled": true, "initial_scale_power": 8})");
  auto metrics = metrics_of(run, {.accumulation = 4}, 2);
  ASSERT_EQ(metrics["critic_loss"].size(), 2U);
  EXPECT_TRUE(std::isfinite(metrics["critic_loss"].at(1)));
}

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::vector<std::string> out;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    out.push_back(line);
  return out;
}

/// The traces of the later steps of two trainings.
void expect_same_end(const Trace& whole, const Trace& after) {
  const auto from = whole.losses.size() - after.losses.size();
  for (std::size_t i = 0; i < after.losses.size(); ++i) {
    EXPECT_EQ(whole.losses[from + i], after.losses[i]);
    EXPECT_EQ(whole.grad_norms[from + i], after.grad_norms[i]);
    EXPECT_EQ(whole.metrics[from + i], after.metrics[i]);
  }
  EXPECT_EQ(whole.digest, after.digest);
}

TEST(Rl, ContinuesAfterAnyStep) {
  for (const std::string& rl : kCases) {
    SCOPED_TRACE(rl);
    const TinyRun run = reinforcing(some_prompts(), rl);
    const files::TempDir folder;
    const Layout one{.ranks = 1, .accumulation = 4}, two{.ranks = 2, .accumulation = 2, .stage = 2};
    const Trace whole = train(
        run,
        one,
        {.steps = 5, .run_dir = folder.path(), .root = folder.path() / "c", .save_at = {1, 2, 3}});
    const std::vector<std::string> ledger = lines_of(folder.path() / "rollouts.jsonl");
    for (const std::filesystem::path& saved : checkpoint::list(folder.path() / "c")) {
      const Trace after = train(run, two, {.steps = 5, .run_dir = folder.path(), .resume = saved});
      expect_same_end(whole, after);
      EXPECT_EQ(lines_of(folder.path() / "rollouts.jsonl"), ledger);
    }
  }
}

// As a kill in the middle of a rollout leaves it: some completions, and half of a line.
TEST(Rl, ContinuesWithinARollout) {
  const TinyRun run = reinforcing(some_prompts(), kCases[0]);
  const files::TempDir folder;
  const std::filesystem::path file = folder.path() / "rollouts.jsonl";
  const Trace whole =
      train(run,
            {.ranks = 1, .accumulation = 4},
            {.steps = 3, .run_dir = folder.path(), .root = folder.path() / "c", .save_at = {1}});
  const std::vector<std::string> ledger = lines_of(file);
  // 8 completions and what they were worth in each step; step 2 begins with line 16.
  ASSERT_EQ(ledger.size(), 48U);
  std::ofstream out(file);
  for (std::size_t i = 0; i < 20; ++i)
    out << ledger[i] << "\n";
  out << ledger[20].substr(0, 30);
  out.close();

  const Trace after = train(
      run,
      {.ranks = 2, .accumulation = 2},
      {.steps = 3, .run_dir = folder.path(), .resume = *checkpoint::newest(folder.path() / "c")});
  expect_same_end(whole, after);
  EXPECT_EQ(lines_of(file), ledger);
}

TEST(Rl, ReplaysAnUpdateToTheBit) {
  for (const std::string& rl : {kCases[1], kCases[4]}) {
    const TinyRun run = reinforcing(some_prompts(), rl);
    const files::TempDir folder;
    const Layout layout{.ranks = 1, .accumulation = 4};
    const Trace whole = train(run,
                              layout,
                              {.steps = 4,
                               .run_dir = folder.path(),
                               .root = folder.path() / "checkpoints",
                               .save_at = {2}});
    const planner::Plan made = run.plan(layout);
    const auto data = engine::open_data(made, {});
    const planner::PlanWithData plan = planner::with_data(made, *data);
    const auto replayed = [&](std::int64_t step) {
      std::vector<double> losses;
      comm::run_threads(1, [&](comm::World& world) {
        rlhf::replay(plan, world, data, folder.path(), step, [&](const auto& one) {
          losses.push_back(one.report.loss);
        });
      });
      return losses;
    };
    EXPECT_EQ(replayed(4), std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
    EXPECT_EQ(replayed(1), std::vector<double>(whole.losses.begin(), whole.losses.begin() + 1));
    // A changed advantage is another update.
    const std::filesystem::path file = folder.path() / "rollouts.jsonl";
    std::string text = files::read(file);
    const std::size_t at = text.find(R"("advantages":[)") + 14;
    text.replace(at, text.find_first_of(",]", at) - at, "3.5");
    files::write_atomic(file, text);
    EXPECT_NE(replayed(1).front(), whole.losses.front());
    // And one without a rollout is none.
    std::ofstream(file) << "";
    EXPECT_THROW(replayed(1), Error);
  }
}

TEST(Rl, MeasuresWhetherTrainingFindsWhatWasSampled) {
  const TinyRun run = reinforcing(some_prompts(), options(R"("samples": 2)"));
  auto metrics = metrics_of(run, {.accumulation = 4}, 2);
  EXPECT_LT(metrics["parity_max"].at(0), 1e-4);
  EXPECT_LE(metrics["parity_mean"].at(0), metrics["parity_max"].at(0));
  // The first update sees the policy that wrote: no ratio is clipped.
  EXPECT_EQ(metrics["clip_share"].at(0), 0.0);

  const TinyRun strict = reinforcing(
      some_prompts(), options(R"("samples": 2, "temperature": 0.5, "parity_limit": 1e-30)"));
  try {
    (void)metrics_of(strict, {.accumulation = 4}, 1);
    FAIL() << "a difference was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Numeric);
    EXPECT_THAT(error.what(), HasSubstr("rl.parity_limit"));
  }
}

TEST(Rl, ReplacesGroupsThatTeachNothing) {
  const auto shares = [](const std::string& more) {
    const TinyRun run = reinforcing(some_prompts(), options(R"("samples": 2)" + more));
    return metrics_of(run, {.accumulation = 4}, 3);
  };
  auto plain = shares(""), dynamic = shares(R"(, "dynamic_rounds": 40)");
  EXPECT_GT(plain["equal_groups"].at(0), 0.0);
  for (const double share : dynamic["equal_groups"])
    EXPECT_EQ(share, 0.0);
  EXPECT_EQ(dynamic["replaced_groups"].at(0), plain["equal_groups"].at(0));
}

TEST(Rl, AdaptsTheCoefficientToItsTarget) {
  const auto coefficients = [](const char* target) {
    const std::string kl =
        std::string(
            R"("samples": 2, "algorithm": "rloo", "kl": {"coefficient": 0.1, "horizon": 8, "target": )") +
        target + "}";
    return metrics_of(
        reinforcing(some_prompts(), options(kl)), {.accumulation = 4}, 2)["kl_coefficient"];
  };
  // No divergence yet, which is less than wanted: 8 completions of a horizon of 8, an error of 20
  // %.
  EXPECT_NEAR(coefficients("5").at(0), 0.08, 1e-9);
  EXPECT_NEAR(coefficients("5").at(1), 0.064, 1e-9);
  EXPECT_THROW(coefficients("-1"), Error);
}

// The reference of an adapter's run is the policy without the adapter: the same as a copy of it.
TEST(Rl, TheReferenceOfAnAdapterIsItsBase) {
  const files::TempDir base;
  (void)TinyRun().set("model.dropout", "0").train({.stage = 0}, 0, base.path());
  const auto run = [&](const std::string& reference) {
    TinyRun out = reinforcing(some_prompts(),
                              options(R"("samples": 2, "kl": {"coefficient": 0.3})" + reference));
    out.set("adapter", R"({"type": "lora", "r": 2, "alpha": 16})")
        .set("optimizer.params.lr", "0.05");
    return out;
  };
  const std::string named = R"(, "reference": ")" + base.path().string() + "\"";
  const Layout one{.ranks = 1, .accumulation = 4, .stage = 0};
  const Trace own = train(run(""), one, {.steps = 4});

  expect_same_bits(own, train(run(named), one, {.steps = 4}));
  expect_same_bits(own, train(run(""), {.ranks = 2, .accumulation = 2, .stage = 1}, {.steps = 4}));
  expect_same_bits(own, train(run(""), {.ranks = 2, .accumulation = 2, .stage = 3}, {.steps = 4}));
  auto metrics = metrics_of(run(""), {.accumulation = 4}, 4);
  EXPECT_EQ(metrics["kl_reference"].at(0), 0.0);
  EXPECT_GT(metrics["kl_reference"].at(3), 0.0);  // the adapter is on again

  const auto beside = [&](const std::string& reference) {
    const planner::PlanWithData plan =
        planner::place(planner::PlanWithData(run(reference).plan(one), {}));
    return plan.needs().beside;
  };
  EXPECT_GT(beside(named), beside(""));
}

TEST(Rl, RefusesWhatIsNotBuilt) {
  const auto refusal = [](TinyRun run, const Layout& layout = {.accumulation = 4}) {
    try {
      const planner::PlanWithData plan =
          planner::place(planner::PlanWithData(run.plan(layout), {}));
    } catch (const Error& error) {
      return error.text();
    }
    return std::string();
  };
  const TinyRun run = reinforcing(some_prompts(), options(R"("samples": 2)"));
  EXPECT_EQ(refusal(run), "");
  EXPECT_EQ(refusal(run, {.ranks = 2, .accumulation = 4, .tensor = 2}), "");
  EXPECT_THAT(refusal(run, {.ranks = 2, .accumulation = 4, .pipeline = "2"}),
              HasSubstr("share stages"));
  EXPECT_THAT(refusal(run, {.ranks = 4, .accumulation = 4, .tensor = 4, .mode = "2d"}),
              HasSubstr("mode"));
  const auto routed = [&](const char* choice) {
    return refusal(TinyRun(run).set("model.moe",
                                    std::string(R"({"num_experts": 4, "top_k": 1, "losses":
                                     {"balance": 0}, "router": {"choice": ")") +
                                        choice + "\"}}"));
  };
  EXPECT_EQ(routed("best"), "");
  EXPECT_THAT(routed("sinkhorn"), HasSubstr("router.choice sinkhorn"));
  for (const char* more : {R"("samples": 2, "kl": {"coefficient": 0.1})",
                           R"("samples": 2, "parity": "exact")",
                           R"("samples": 2, "top_k": 3)",
                           R"("algorithm": "ppo")"}) {
    EXPECT_EQ(refusal(reinforcing(some_prompts(), options(more)),
                      {.ranks = 2, .accumulation = 4, .tensor = 2}),
              "");
  }
  TinyRun evaluated = run;
  evaluated.set("data.validation_fraction", "0.5");
  EXPECT_EQ(refusal(evaluated), "");
  EXPECT_EQ(refusal(evaluated, {.ranks = 2, .accumulation = 4, .tensor = 2}), "");
  EXPECT_THAT(
      refusal(TinyRun(run).set("hybrid_engine", R"({"enabled": true, "max_out_tokens": 8})")),
      HasSubstr("set data.sequence_length to 8"));
  EXPECT_EQ(
      refusal(TinyRun(run).set(
          "hybrid_engine", R"({"enabled": true, "max_out_tokens": 512, "inference_tp_size": 1})")),
      "");
  const auto models = [&](const char* more) {
    return refusal(reinforcing(some_prompts(), options(more)));
  };
  EXPECT_THAT(models(R"("samples": 2, "models": {"reference": {"offload": {"device": "nvme",
                        "nvme_path": "/tmp"}}})"),
              HasSubstr("there is no reference model"));
  EXPECT_THAT(models(R"("samples": 2, "models": {"reference": {"tensor": 2}})"),
              HasSubstr("there is no reference model"));
  EXPECT_THAT(models(R"("samples": 2, "models": {"critic": {"zero_stage": 1}})"),
              HasSubstr("there is no critic model"));
  EXPECT_THAT(models(R"("samples": 2, "kl": {"coefficient": 0.1},
                        "models": {"reference": {"zero_stage": 2}})"),
              HasSubstr("0 (whole on each data-parallel rank)"));
  EXPECT_THAT(refusal(TinyRun(run).set("data.drop_last", "false")), HasSubstr("drop_last"));
  for (const char* const cache : {"int8", "bf16"}) {
    const std::string stored = R"("samples": 2, "cache": ")" + std::string(cache) + "\"";
    EXPECT_EQ(refusal(reinforcing(some_prompts(), options(stored))), "");
    EXPECT_THAT(refusal(reinforcing(some_prompts(), options(stored + R"(, "parity": "exact")"))),
                HasSubstr("rl.cache " + std::string(cache)));
  }
  EXPECT_THAT(refusal(reinforcing(some_prompts(), options(R"("samples": 3)"))),
              HasSubstr("not a whole number of groups"));
}

TEST(Rl, CountsTheMemoryOfAllModels) {
  const auto beside = [](const std::string& more) {
    const planner::PlanWithData policy(
        reinforcing(some_prompts(), options(more)).plan({.accumulation = 4}), {});
    const std::int64_t alone = planner::estimate_memory(policy).total();
    const planner::PlanWithData plan = planner::place(policy);
    EXPECT_EQ(planner::estimate_memory(plan).total(), alone + plan.needs().beside);
    EXPECT_EQ(planner::estimate_memory(plan).unknown, "");
    EXPECT_THAT(plan.notes().back(), HasSubstr("in addition to the policy"));
    return std::pair(plan.needs().beside, plan.model().resolved.num_parameters);
  };
  const auto [plain, parameters] = beside(R"("samples": 2)");
  // A reference is its weights; a critic has gradients and moments too.
  EXPECT_EQ(beside(R"("samples": 2, "kl": {"coefficient": 0.1})").first - plain, 4 * parameters);
  EXPECT_GT(beside(R"("algorithm": "ppo", "kl": {"coefficient": 0})").first - plain,
            8 * parameters);
  // A page has 16 tokens of 32 channels, of keys and of values, in both layers. Two prompts of up
  // to 12 tokens have one page each; each of their 4 completions has one for its own tokens and a
  // copy of the one in which its prompt ends.
  constexpr std::int64_t kPage = 2 * 2 * 16 * 32 * 4;
  EXPECT_EQ(plain - beside(R"("samples": 2, "cache": "bf16")").first, (2 + 2 * 4) * kPage / 2);
  EXPECT_EQ(plain - beside(R"("samples": 2, "completions_at_once": 1)").first, 3 * 2 * kPage);
  EXPECT_THROW(beside(R"("samples": 2, "reference": "/no/such/run", "kl": {"coefficient": 0.1})"),
               Error);
}

TEST(RlAlarms, SayInWordsWhatIsWrong) {
  const std::vector<std::string> texts = {"", "", "a \xC3\xA4 b"};
  const auto names = [&](const engine::Metrics& metrics) {
    std::vector<std::string> out;
    for (const rlhf::Alarm& alarm : rlhf::alarms_of(metrics, texts))
      out.push_back(alarm.name);
    return out;
  };
  EXPECT_THAT(names({{"entropy", 1.0}, {"equal_groups", 0.2}}), testing::ElementsAre("empty"));
  EXPECT_THAT(
      names({{"entropy", 0.001},
             {"equal_groups", 0.92},
             {"truncated", 1.0},
             {"kl_reference", 6.0},
             {"repetition", 0.8}}),
      testing::ElementsAre("equal_groups", "truncated", "empty", "repeating", "collapsed", "far"));
  EXPECT_THAT(rlhf::alarms_of({{"equal_groups", 0.92}}, texts).front().what,
              HasSubstr("equal in 92 % of groups: nothing is learned"));
}

/// Ten first rollouts of completions of this length, of which a share has no end.
rlhf::FirstRollouts first_rollouts(double length, double truncated) {
  rlhf::FirstRollouts out;
  for (int i = 0; i < rlhf::kRolloutsOfAlarm; ++i)
    out.add({{"length", length + (i % 2 == 0 ? 1 : -1)}, {"truncated", truncated}});
  return out;
}

TEST(RlAlarms, CompareLengthsWithThoseOfTheFirstRollouts) {
  const std::vector<std::string> texts = {"a", "b", "c", "d"};
  const auto told = [&](double length, const rlhf::FirstRollouts& first) {
    const auto alarms = rlhf::alarms_of({{"length", length}}, texts, first);
    return alarms.empty() ? std::string() : alarms.front().name + ": " + alarms.front().what;
  };
  rlhf::FirstRollouts first = first_rollouts(20, 0.4);
  EXPECT_EQ(told(79, first), "");
  EXPECT_EQ(told(5.1, first), "");
  EXPECT_EQ(told(80, first),
            "length: completions have 80 tokens on average, and had 20 in the first 10 rollouts; "
            R"(completions: "a", "b", "c")");
  EXPECT_THAT(told(5, first), HasSubstr("have 5 tokens on average, and had 20"));
  // Learning to end answers is not shortening.
  EXPECT_EQ(told(5, first_rollouts(20, 0.5)), "");
  EXPECT_NE(told(80, first_rollouts(20, 0.5)), "");
  // Later rollouts do not change what is compared with, and a few do not suffice.
  first.add({{"length", 1000}, {"truncated", 1}});
  EXPECT_EQ(first.length(), 20);
  rlhf::FirstRollouts few;
  few.add({{"length", 20}, {"truncated", 0}});
  EXPECT_EQ(told(80, few), "");
  // A checkpoint restores the state, also before all first rollouts are counted.
  EXPECT_EQ(rlhf::FirstRollouts(first.state()).length(), 20);
  EXPECT_EQ(rlhf::FirstRollouts(few.state()).state().dump(), few.state().dump());
  EXPECT_THROW(rlhf::FirstRollouts(json::parse(R"({"rollouts": 3})", "state")), Error);
}

// A run that went on after a stop compares with the rollouts before it.
TEST(RlAlarms, TheFirstRolloutsAreInCheckpoints) {
  const TinyRun run = reinforcing(some_prompts(), kCases[0]);
  const files::TempDir folder;
  const Layout one{.ranks = 1, .accumulation = 4};
  (void)train(
      run,
      one,
      {.steps = 3, .run_dir = folder.path(), .root = folder.path() / "c", .save_at = {1, 3}});
  const auto saved = checkpoint::list(folder.path() / "c");
  ASSERT_EQ(saved.size(), 2U);
  (void)train(run,
              one,
              {.steps = 3,
               .run_dir = folder.path(),
               .root = folder.path() / "d",
               .resume = *std::ranges::min_element(saved),
               .save_at = {3}});
  const auto state = [](const std::filesystem::path& checkpoint) {
    return checkpoint::Checkpoint(checkpoint).meta().extra.find("rl")->dump();
  };
  const std::string whole = state(*checkpoint::newest(folder.path() / "c"));
  EXPECT_THAT(whole, HasSubstr(R"("first_rollouts":{"rollouts":3)"));
  EXPECT_EQ(state(*checkpoint::newest(folder.path() / "d")), whole);
}

}  // namespace
}  // namespace tessera::test

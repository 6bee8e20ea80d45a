// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Choices of experts, compared with published routers and with properties that every router must
// have.
#include "tessera/ops/router.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/support.h"
#include "support/source_dir.h"

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/ops/expert_rows.h"

namespace tessera::ops {
namespace {

const json::Value& answers() {
  static const json::Value all = [] {
    const auto path = test::source_dir() / "tests/ops/expert_gates.json";
    return json::parse_strict(files::read(path), path.string());
  }();
  return all;
}

at::Tensor matrix(const json::Value& rows) {
  const auto N = std::ssize(rows.items()), E = std::ssize(rows.items().front().items());
  at::Tensor out = at::empty({N, E}, at::kFloat);
  auto* to = out.data_ptr<float>();
  for (const json::Value& row : rows.items()) {
    for (const json::Value& value : row.items())
      *to++ = static_cast<float>(value.as_double());
  }
  return out;
}

using Routes = std::map<std::pair<std::int64_t, std::int64_t>, double>;

Routes expected(const json::Value& list) {
  Routes out;
  for (const json::Value& route : list.items())
    out[{*route.items()[0].as_integer(), *route.items()[1].as_integer()}] =
        route.items()[2].as_double();
  return out;
}

Routes routes_of(const Choices& choices) {
  Routes out;
  const std::int64_t N = choices.experts_NK.size(0), K = choices.experts_NK.size(1);
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t k = 0; k < K; ++k) {
      const auto expert = choices.experts_NK[n][k].item<std::int32_t>();
      if (expert >= 0) out[{n, expert}] = choices.weights_NK[n][k].item<double>();
    }
  }
  return out;
}

void expect_routes(const Choices& ours, const json::Value& theirs, const std::string& what) {
  const Routes got = routes_of(ours), wanted = expected(theirs);
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (const auto& [place, weight] : wanted) {
    const auto found = got.find(place);
    ASSERT_NE(found, got.end()) << what << ": token " << place.first << ", expert " << place.second;
    EXPECT_NEAR(found->second, weight, 1e-6) << what << ": token " << place.first;
  }
}

DropRule rule_of(const std::string& name) {
  return name == "choice"        ? DropRule::Choice
         : name == "probability" ? DropRule::Probability
                                 : DropRule::Position;
}

TEST(Router, ChoosesDropsAndWeighsAsDeepSpeed) {
  for (const json::Value& one : answers().find("deepspeed")->items()) {
    const bool top1 = one.find("gate")->as_string() == "top1";
    const RouterSpec spec = {.top_k = *one.find("k")->as_integer(), .normalize = !top1};
    const CapacitySpec capacity = {.factor = one.find("capacity_factor")->as_double(),
                                   .minimum = *one.find("min_capacity")->as_integer(),
                                   .drop = rule_of(one.find("drop")->as_string()),
                                   .normalize_after = true};
    const at::Tensor logits = matrix(*one.find("logits"));
    Choices choices = choose_experts(logits, {}, spec);
    const std::int64_t dropped = drop_choices(choices, spec, capacity, logits.size(1), 1);
    expect_routes(choices, *one.find("routes"), one.find("gate")->as_string());
    EXPECT_EQ(dropped, logits.size(0) * spec.top_k - std::ssize(one.find("routes")->items()));
  }
}

RouterSpec megatron_spec(const json::Value& one) {
  const bool softmax = one.find("score_function")->as_string() == "softmax";
  const bool pre = one.find("use_pre_softmax") != nullptr;
  const auto number = [&](const char* key, double otherwise) {
    return one.find(key) == nullptr ? otherwise : one.find(key)->as_double();
  };
  RouterSpec spec = {.top_k = *one.find("topk")->as_integer(),
                     .score = softmax ? RouterScore::Softmax : RouterScore::Sigmoid,
                     .normalize = !softmax || !pre,
                     .normalize_eps = softmax ? 0.0 : 1e-20,
                     .scale = number("scaling_factor", 1.0),
                     .groups = static_cast<std::int64_t>(number("num_groups", 1)),
                     .top_groups = static_cast<std::int64_t>(number("group_topk", 1))};
  if (spec.top_k / spec.top_groups == 1) spec.group_rank = GroupRank::Best;
  return spec;
}

TEST(Router, ChoosesDropsAndWeighsAsMegatron) {
  for (const json::Value& one : answers().find("megatron")->items()) {
    const RouterSpec spec = megatron_spec(one);
    const at::Tensor logits = matrix(*one.find("logits"));
    at::Tensor correction;
    if (!one.find("expert_bias")->is_null())
      correction = matrix(json::Value::array({*one.find("expert_bias")})).view({-1});
    const Choices choices = choose_experts(logits, correction, spec);
    expect_routes(choices, *one.find("routes"), "all");
    for (const json::Value& limit : one.find("dropped")->items()) {
      Choices kept = choices;
      const CapacitySpec capacity = {.factor = limit.find("capacity_factor")->as_double(),
                                     .drop = DropRule::Probability};
      EXPECT_EQ(expert_capacity(logits.size(0), logits.size(1), spec.top_k, capacity),
                *limit.find("capacity")->as_integer());
      drop_choices(kept, spec, capacity, logits.size(1), 1);
      expect_routes(kept, *limit.find("routes"), "dropped");
    }
  }
}

TEST(Router, ComputesTheCapacityInFp32) {
  for (const json::Value& row : answers().find("capacity")->items()) {
    const auto& of = row.items();
    const CapacitySpec spec = {.factor = of[2].as_double(), .minimum = *of[3].as_integer()};
    EXPECT_EQ(expert_capacity(*of[0].as_integer(), *of[1].as_integer(), 1, spec),
              *of[4].as_integer());
  }
}

TEST(Router, PrefersTheLowerOfEqualExperts) {
  const at::Tensor equal = at::zeros({3, 8});
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::Sigmoid}) {
    const Choices choices = choose_experts(equal, {}, {.top_k = 3, .score = score});
    for (std::int64_t n = 0; n < 3; ++n) {
      for (std::int64_t k = 0; k < 3; ++k)
        EXPECT_EQ(choices.experts_NK[n][k].item<std::int32_t>(), k);
    }
  }
  // Sigmoids of large logits are all 1 in fp32; the logits still differ.
  const at::Tensor large = at::tensor({40.0F, 50.0F, 45.0F}).view({1, 3});
  EXPECT_EQ(choose_experts(large, {}, {.top_k = 1, .score = RouterScore::Sigmoid})
                .experts_NK.item<std::int32_t>(),
            1);
}

std::vector<RouterSpec> all_specs() {
  return {{.top_k = 2},
          {.top_k = 2, .normalize = true, .scale = 2.5},
          {.top_k = 8, .normalize = true},
          {.top_k = 1},
          {.top_k = 3, .score = RouterScore::Sigmoid, .normalize = true, .normalize_eps = 1e-20},
          {.top_k = 2, .score = RouterScore::Sigmoid},
          {.top_k = 3, .normalize = true, .groups = 4, .top_groups = 2},
          {.top_k = 2, .score = RouterScore::SparseMixer, .mixer_eps = 0.2}};
}

at::Tensor example(std::int64_t N) {
  return at::sin(at::arange(N * 8, at::kDouble) * 1.7).mul(2.0).to(at::kFloat).view({N, 8});
}

TEST(Router, DecidesAboutATokenWithoutTheOthers) {
  const at::Tensor logits = example(70);
  for (const RouterSpec& spec : all_specs()) {
    const Choices all = choose_experts(logits, {}, spec);
    for (const std::int64_t n : {0, 1, 33, 69}) {
      const Choices alone = choose_experts(logits.narrow(0, n, 1), {}, spec);
      EXPECT_TRUE(at::equal(alone.experts_NK[0], all.experts_NK[n]));
      EXPECT_TRUE(at::equal(alone.weights_NK[0], all.weights_NK[n]));
      EXPECT_TRUE(at::equal(alone.scores_NE[0], all.scores_NE[n]));
    }
  }
}

json::Value sinkhorn_answers() {
  const auto path = test::source_dir() / "tests/ops/sinkhorn.json";
  return json::parse_strict(files::read(path), path.string());
}

RouterSpec sinkhorn_spec(std::int64_t k) {
  return {.top_k = k,
          .score = k == 1 ? RouterScore::Sigmoid : RouterScore::Softmax,
          .choice = RouterChoice::Sinkhorn};
}

/// A function of weights and scores, to be differentiated.
double value(const Choices& choices) {
  const at::Tensor w = choices.weights_NK.to(at::kDouble), s = choices.scores_NE.to(at::kDouble);
  const at::Tensor by_slot = at::arange(1, w.size(1) + 1, at::kDouble),
                   by_expert = at::arange(s.size(1), at::kDouble).cos();
  return (w * by_slot).sum().item<double>() + (s * by_expert).sum().item<double>();
}

TEST(Router, HasTheGradientOfItsWeightsAndScores) {
  const at::Tensor logits = example(6);
  std::vector<RouterSpec> specs = all_specs();
  specs.push_back(sinkhorn_spec(1));
  specs.push_back(sinkhorn_spec(2));
  for (const RouterSpec& spec : specs) {
    for (const double factor : {0.0, 0.75}) {
      for (const bool after : {false, true}) {
        const CapacitySpec capacity = {.factor = factor, .normalize_after = after};
        const auto choose = [&](const at::Tensor& x) {
          Choices out = choose_experts(x, {}, spec);
          drop_choices(out, spec, capacity, 8, 1);
          return out;
        };
        const Choices choices = choose(logits);
        const std::int64_t K = spec.top_k;
        const at::Tensor dweights = at::arange(1, K + 1, at::kFloat).expand({6, K}).contiguous();
        const at::Tensor dscores = at::arange(8, at::kFloat).cos().expand({6, 8}).contiguous();
        const at::Tensor gradient =
            choose_experts_backward(dweights, dscores, logits, choices, spec, capacity);
        for (std::int64_t n = 0; n < 6; ++n) {
          for (std::int64_t e = 0; e < 8; ++e) {
            constexpr double kStep = 1e-2;
            at::Tensor up = logits.clone(), down = logits.clone();
            up[n][e] += kStep;
            down[n][e] -= kStep;
            const Choices above = choose(up), below = choose(down);
            // Where the choice, or what a sparse mixer leaves out, changes there is no derivative.
            const double bend = value(above) - 2 * value(choices) + value(below);
            if (!at::equal(above.experts_NK, choices.experts_NK) ||
                !at::equal(below.experts_NK, choices.experts_NK) || std::abs(bend) > 1e-2)
              continue;
            EXPECT_NEAR(
                gradient[n][e].item<double>(), (value(above) - value(below)) / (2 * kStep), 2e-3);
          }
        }
      }
    }
  }
}

TEST(Router, SpreadsTokensBySinkhornsScalingAsMegatron) {
  const json::Value all = sinkhorn_answers();
  std::int64_t moved = 0;
  for (const json::Value& one : all.find("cases")->items()) {
    const std::int64_t k = *one.find("k")->as_integer();
    const at::Tensor logits = matrix(*one.find("logits"));
    const std::vector<double> shifts =
        sinkhorn_shifts(logits.const_data_ptr<float>(), logits.size(0), logits.size(1));
    for (std::size_t e = 0; e < shifts.size(); ++e)
      EXPECT_NEAR(shifts[e], one.find("shifts")->items()[e].as_double(), 2e-3);
    const Choices choices = choose_experts(logits, {}, sinkhorn_spec(k));
    expect_routes(choices, *one.find("routes"), "sinkhorn");
    for (std::int64_t n = 0; n < logits.size(0); ++n)
      moved += choices.experts_NK[n][0].item<std::int64_t>() !=
                       *one.find("best")->items()[static_cast<std::size_t>(n)].as_integer()
                   ? 1
                   : 0;
  }
  EXPECT_GT(moved, 10) << "the choice is not that of the best scores";
}

TEST(Router, SpreadsTheTokensOfSeveralRanksAsThoseOfOne) {
  const at::Tensor logits = example(24);
  const RouterSpec spec = sinkhorn_spec(2);
  const Choices whole = choose_experts(logits, {}, spec);
  // Two ranks take turns: the sums of one round are exchanged before the next.
  std::vector<at::Tensor> parts = {logits.narrow(0, 0, 10).contiguous(),
                                   logits.narrow(0, 10, 14).contiguous()};
  std::array<Choices, 2> shared;
  std::vector<double> sums;
  std::barrier meeting(2, [] {});
  std::mutex lock;
  const auto run = [&](std::size_t rank) {
    shared[rank] = choose_experts(parts[rank], {}, spec, [&](std::span<double> values) {
      {
        const std::lock_guard held(lock);
        sums.resize(values.size(), 0.0);
        for (std::size_t i = 0; i < values.size(); ++i)
          sums[i] += values[i];
      }
      meeting.arrive_and_wait();
      std::ranges::copy(sums, values.begin());
      meeting.arrive_and_wait();
      {
        const std::lock_guard held(lock);
        sums.clear();
      }
      meeting.arrive_and_wait();
    });
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  EXPECT_TRUE(at::equal(at::cat({shared[0].experts_NK, shared[1].experts_NK}), whole.experts_NK));
}

TEST(Router, SpreadsTokensWhoseLogitsAreFarApart) {
  const at::Tensor logits = at::tensor({1e4F, -1e4F, 0.0F, 1e4F, 1e4F, 0.0F}).view({2, 3});
  const Choices choices = choose_experts(logits, {}, sinkhorn_spec(1));
  EXPECT_TRUE(choices.weights_NK.isfinite().all().item<bool>());
  EXPECT_TRUE(choices.experts_NK.ge(0).all().item<bool>());
}

TEST(Router, IsRefusedWithMoreChoicesThanOpenExperts) {
  EXPECT_THROW(choose_experts(example(2), {}, {.top_k = 9}), Error);
  EXPECT_THROW(choose_experts(example(2), {}, {.top_k = 3, .groups = 4, .top_groups = 1}), Error);
  EXPECT_THROW(choose_experts(example(2), {}, {.top_k = 1, .groups = 3}), Error);
}

TEST(ExpertRows, AreSortedByExpertAndThenByToken) {
  const at::Tensor experts =
      at::tensor(std::vector<std::int32_t>{2, 0, 0, -1, 2, 1, 0, 2}, at::kInt).view({4, 2});
  const ExpertRows rows = sort_by_expert(experts, 4);
  EXPECT_EQ(rows.counts, (std::vector<std::int64_t>{3, 1, 3, 0}));
  EXPECT_TRUE(at::equal(rows.choice_of_R, at::tensor({1, 2, 6, 5, 0, 4, 7}, at::kLong)));
  EXPECT_TRUE(at::equal(rows.token_of_R, at::tensor({0, 1, 3, 2, 0, 2, 3}, at::kLong)));
  EXPECT_TRUE(
      at::equal(rows.row_of_NK.view({-1}), at::tensor({4, 0, 1, -1, 5, 3, 2, 6}, at::kLong)));
}

TEST(ExpertRows, AreGatheredAndAddedInTheOrderOfTheChoices) {
  const at::Tensor experts =
      at::tensor(std::vector<std::int32_t>{2, 0, 0, -1, 2, 1}, at::kInt).view({3, 2});
  const ExpertRows rows = sort_by_expert(experts, 3);
  const at::Tensor x = at::arange(3 * 33, at::kFloat).view({3, 33}).sin(),
                   w = at::tensor({0.5F, 0.25F, 1.0F, 0.0F, 0.75F, 0.125F}).view({3, 2});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor in = x.to(dtype), gathered = rows_of_tokens(in, rows, {});
    EXPECT_TRUE(at::equal(gathered, in.index_select(0, rows.token_of_R)));
    const at::Tensor sum = sum_of_rows(gathered, rows, w).to(at::kFloat);
    const at::Tensor weight = w.sum(1, /*keepdim=*/true);
    EXPECT_TRUE(at::allclose(sum, in.to(at::kFloat) * weight, 1e-2, 1e-2));
    const at::Tensor weighed = rows_of_tokens(in, rows, w).to(at::kFloat);
    EXPECT_TRUE(at::allclose(weighed[0], in[0].to(at::kFloat) * 0.25F, 1e-2, 1e-2));
    const at::Tensor products = products_of_rows(in, gathered, rows);
    EXPECT_EQ(products[1][1].item<float>(), 0.0F) << "a dropped choice";
    EXPECT_NEAR(
        products[0][1].item<double>(), in[0].to(at::kDouble).square().sum().item<double>(), 1e-4);
  }
  const ExpertRows none = sort_by_expert(at::full({2, 2}, -1, at::kInt), 3);
  EXPECT_TRUE(at::equal(sum_of_rows(at::empty({0, 5}), none, {}), at::zeros({2, 5})));
}

}  // namespace
}  // namespace tessera::ops

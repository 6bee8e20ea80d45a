// SPDX-License-Identifier: Apache-2.0
// An optimizer whose moments rest in four bits between updates, compared with torchao.
#include "tessera/parallel/kept_state.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/config/json.h"
#include "tessera/optim/rule.h"

namespace tessera::parallel {
namespace {

// Values of torchao 0.18's single_param_adam() with OptimState4bit, of five updates from weights
// and gradients that are fractions.
TEST(FourBitMoments, AreThoseOfTorchao) {
  constexpr std::int64_t kNumel = 4096;
  config::Problems problems;
  config::Origins origins;
  const auto rule = optim::rule_factory("AdamW4bit")(
      json::parse(R"({"lr": 1e-2, "weight_decay": 0.01})", "config.json"), problems, origins);
  problems.raise();
  const optim::ParamFacts facts = {.name = "weight", .rows = 64, .columns = 64, .matrix = true};
  std::vector<KeptState> moments;
  for (std::size_t i = 0; i < 2; ++i)
    moments.push_back(KeptState::zeros(optim::kept_in(*rule, facts, i), DType::F32, kNumel));
  std::vector<float> weights(kNumel), gradient(kNumel);
  for (std::int64_t i = 0; i < kNumel; ++i)
    weights[static_cast<std::size_t>(i)] = static_cast<float>(i * 53 % 127 - 63) / 128.0F;

  for (std::int64_t step = 1; step <= 5; ++step) {
    for (std::int64_t i = 0; i < kNumel; ++i) {
      const float size = i / 128 % 2 == 0 ? 1.0F : std::ldexp(1.0F, -10);
      const bool none = i >= 256 && i < 384;
      gradient[static_cast<std::size_t>(i)] =
          none ? 0.0F : static_cast<float>((i * 37 + step * 11) % 101 - 50) / 64.0F * size;
    }
    std::vector<at::Tensor> wide = {moments[0].widened(), moments[1].widened()};
    optim::ShardView view{.master = weights.data(),
                          .grad = gradient.data(),
                          .state = {wide[0].data_ptr<float>(), wide[1].data_ptr<float>()},
                          .numel = kNumel,
                          .facts = &facts};
    rule->update(view, {.lr = 1e-2, .step = step});
    moments[0].take(wide[0]);
    moments[1].take(wide[1]);
  }

  struct Expected {
    std::int64_t at;
    float weight, first, second;
  };
  const std::vector<Expected> expected = {{0, -0.448123783F, -0.0797430724F, 0.000559529348F},
                                          {1, -0.0935205072F, 0.120753802F, 0.000783341064F},
                                          {17, -0.385267258F, 0.0387323499F, 0.000447623461F},
                                          {127, -0.534681201F, 0.0797430724F, 0.00156668213F},
                                          {128, -0.0346740112F, -0.000157973162F, 1.28066102e-09F},
                                          {200, -0.0279425811F, 7.78740941e-05F, 4.26886998e-10F},
                                          {255, -0.123523548F, 0.000177997936F, 9.60495794e-10F},
                                          {256, 0.335769564F, 0.0F, 6.24999998e-14F},
                                          {383, 0.335769564F, 0.0F, 6.24999998e-14F},
                                          {384, -0.260071278F, -7.78740941e-05F, 1.60082625e-09F},
                                          {2049, -0.432324171F, 0.0141259162F, 0.00167858799F},
                                          {4095, 0.471256018F, -9.78988624e-07F, 3.20165255e-10F}};
  const at::Tensor first = moments[0].widened(), second = moments[1].widened();
  for (const Expected& one : expected) {
    SCOPED_TRACE(one.at);
    // The order of roundings differs: some units of the last place in each update.
    EXPECT_NEAR(weights[static_cast<std::size_t>(one.at)], one.weight, 1e-6F);
    EXPECT_NEAR(first.data_ptr<float>()[one.at], one.first, 1e-6F * std::abs(one.first));
    EXPECT_NEAR(second.data_ptr<float>()[one.at], one.second, 1e-6F * one.second);
  }
  EXPECT_EQ(moments[0].stored().numel(), kNumel / 2);
}

TEST(FourBitMoments, AreOfParametersThatFillTheirBlocks) {
  config::Problems problems;
  config::Origins origins;
  const auto rule = optim::rule_factory("AdamW4bit")(json::Value::object(), problems, origins);

  const auto kept = [&](std::int64_t numel, std::size_t index) {
    return optim::kept_in(*rule, {.name = "w", .rows = 1, .columns = numel}, index);
  };
  EXPECT_EQ(kept(4096, 0), optim::KeptIn::Codes4);
  EXPECT_EQ(kept(4096, 1), optim::KeptIn::Codes4Positive);
  EXPECT_EQ(kept(4095, 0), optim::KeptIn::Type);
  EXPECT_EQ(kept(4096 + 64, 0), optim::KeptIn::Type);
  EXPECT_EQ(kept_bytes(optim::KeptIn::Codes4, DType::F32, 4096), 2048 + 4 * 32);
  // Other parameters have the type of the run's states.
  EXPECT_EQ(kept_bytes(optim::KeptIn::Type, DType::F32, 4095), 4 * 4095);
  EXPECT_EQ(kept_bytes(optim::KeptIn::Type, DType::BF16, 4095), 2 * 4095);
}

}  // namespace
}  // namespace tessera::parallel

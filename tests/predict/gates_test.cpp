// SPDX-License-Identifier: Apache-2.0
// Predicted times of steps against published measurements, each beside a trivial prediction: one
// constant share of the peak, the best one in hindsight.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "predict/published.h"
#include <gtest/gtest.h>

#include "tessera/predict/described_machine.h"
#include "tessera/predict/links.h"
#include "tessera/predict/step_time.h"

namespace tessera::test {
namespace {

predict::StepTime predicted(const Measured& row, const predict::DescribedMachine& machine) {
  return predict::predict_step(plan_of(row.of), machine);
}

/// Seconds at the peak, of the FLOPs of a step without recomputation or with it.
double at_peak(const Measured& row, double peak, bool recomputes) {
  const double batch = static_cast<double>(row.of.micro * row.of.accumulation * row.of.ranks /
                                           (row.of.tensor * row.of.pipeline));
  const double flops = flops_with_recomputation(row.of, batch) * (recomputes ? 1.0 : 0.75);
  return flops / (static_cast<double>(row.of.ranks) * peak);
}

void print(const char* gate, const Score& ours, const Score& constant) {
  std::printf(
      "%-22s %2zu rows: mean %.2f %%, most %.2f %%; one constant: mean %.2f %%, most %.2f %%\n",
      gate,
      ours.rows,
      100 * ours.mean,
      100 * ours.most,
      100 * constant.mean,
      100 * constant.most);
}

struct Gate {
  Score ours, constant;
};

Gate run(const char* name,
         const std::vector<Measured>& rows,
         const predict::DescribedMachine& machine) {
  const double peak = machine.peak.at(DType::BF16);
  Gate out;
  out.ours = score(rows, [&](const Measured& row) { return predicted(row, machine).seconds; });
  out.constant = trivial(
      rows, [&](const Measured& row) { return at_peak(row, peak, row.of.recompute == "full"); });
  print(name, out.ours, out.constant);
  return out;
}

TEST(PublishedTimes, OfKorthikantiAreMetWithin8PercentAnd3Point5OnAverage) {
  const Gate gate =
      run("Korthikanti, table 5", korthikanti(), predict::find_machine("a100-80gb-megatron"));

  EXPECT_LE(gate.ours.mean, 0.035);
  EXPECT_LE(gate.ours.most, 0.08);
  EXPECT_LT(gate.ours.mean, gate.constant.mean);
}

TEST(PublishedTimes, OfMegatronAreMetBetterThanByAConstant) {
  std::vector<Measured> rows = megatron();
  std::ranges::copy(megatron_table2("PTD"), std::back_inserter(rows));

  const Gate gate = run("Megatron, tables 1, 2", rows, predict::find_machine("a100-80gb-megatron"));

  EXPECT_LE(gate.ours.mean, 0.053);
  EXPECT_LE(gate.ours.most, 0.105);
}

TEST(PublishedTimes, OfZeroStage3AreMetWithin12Percent) {
  const predict::DescribedMachine machine = predict::find_machine("a100-80gb-megatron");
  const auto on = [&](const char* network) {
    return predict::with_network(machine, predict::find_network(network));
  };

  const Gate selene = run("ZeRO-3 on Selene", megatron_table2("ZeRO-3"), on("selene-2021"));
  const Gate clouds = run("ZeRO-3 on Azure", azure(), on("azure-2022"));

  EXPECT_LE(selene.ours.mean, 0.12);
  EXPECT_LE(clouds.ours.mean, 0.12);
  EXPECT_LT(selene.ours.mean, selene.constant.mean);
  EXPECT_LT(clouds.ours.mean, clouds.constant.mean);
}

/// The rows of a kind of GPU whose model is among `sizes`, or is not.
std::vector<Measured> of_sizes(const std::string& gpu,
                               const std::set<std::string>& sizes,
                               bool among) {
  std::vector<Measured> out;
  for (const Measured& row : foundry()) {
    if (!row.group.starts_with(gpu) || row.group.find("fp8") != std::string::npos) continue;
    if (sizes.contains(row.name.substr(0, row.name.find(','))) == among) out.push_back(row);
  }
  return out;
}

TEST(PublishedTimes, OfLlmFoundryOnA100AreMetForSizesThatWereNotFitted) {
  const std::set<std::string> fitted = {"125m", "3b"};
  const predict::DescribedMachine large =
      predict::with_network(predict::find_machine("a100-80gb"), predict::find_network("roce1600"));
  const predict::DescribedMachine small =
      predict::with_network(predict::find_machine("a100-40gb"), predict::find_network("roce1600"));

  run("A100 80 GB, fitted", of_sizes("a100_80", fitted, true), large);
  const Gate gate = run("A100 80 GB, others", of_sizes("a100_80", fitted, false), large);
  // No row of this GPU was used: it differs by its memory alone.
  const Gate other = run("A100 40 GB, others", of_sizes("a100_40", fitted, false), small);

  EXPECT_LE(gate.ours.mean, 0.08);
  EXPECT_LT(gate.ours.mean, gate.constant.mean);
  EXPECT_LE(other.ours.mean, 0.08);
}

TEST(PublishedTimes, OfLlmFoundryOnH100AreMetForSizesThatWereNotFitted) {
  const std::set<std::string> fitted = {"760m", "13b"};
  const predict::DescribedMachine machine = predict::find_machine("h100");

  run("H100, fitted", of_sizes("h100", fitted, true), machine);
  const Gate gate = run("H100, others", of_sizes("h100", fitted, false), machine);

  EXPECT_LE(gate.ours.mean, 0.08);
  EXPECT_LT(gate.ours.mean, gate.constant.mean);
}

// ---- formulas ----

TEST(PublishedFlops, OfATokenGiveTheUtilizationThatLlmFoundryPrints) {
  double most = 0;
  FormulaGate gate("E5 utilization of llm-foundry");
  for (const Measured& row : foundry()) {
    if (row.group.find("fp8") != std::string::npos) continue;
    const double peak = row.group.starts_with("h100") ? 989.5e12 : 312e12;
    const double tokens = static_cast<double>(row.of.micro * row.of.accumulation * row.of.length);
    Published one = row.of;
    one.ranks = one.micro = one.accumulation = 1;
    one.zero = 0;
    const double mfu = predict::flops_of_token(plan_of(one)) * tokens / row.seconds / peak;
    double printed = 0;
    for (const Row& of : published("llm_foundry_mpt")) {
      const std::string name =
          of.at("model") + ", length " + of.at("seq") + ", " + of.at("gpus") + " ranks";
      const bool same = name == row.name && of.at("gpu") + " " + of.at("precision") == row.group &&
                        of.at("micro_batch") == std::to_string(row.of.micro) &&
                        of.at("grad_accum") == std::to_string(row.of.accumulation);
      if (same) printed = number(of, "mfu_pct") / 100;
    }
    ASSERT_GT(printed, 0) << row.name;
    most = std::max(most, std::abs(mfu / printed - 1));
    gate.add(mfu, printed, 1.0);
  }
  EXPECT_LE(most, 0.0025);
}

/// The days of a training by its FLOPs, in the bill of a predicted step.
TEST(PublishedFlops, GiveTheDaysOfTrainingsWith300BillionTokens) {
  FormulaGate gate("E4 days of 300 billion tokens");
  for (const Row& row : published("megatron_sc21_table2_zero3")) {
    Published model = model_of_table2(row);
    const double batch = number(row, "global_batch"), gpus = number(row, "gpus");
    predict::StepTime step;
    step.tokens = static_cast<std::int64_t>(batch) * model.length;
    step.seconds =
        flops_with_recomputation(model, batch) / (gpus * number(row, "tflops_per_gpu") * 1e12);

    const predict::Bill bill = predict::bill_of(
        step, 300e9 / static_cast<double>(step.tokens), static_cast<int>(gpus), 2.0);

    gate.add(bill.days, number(row, "days_300B_tokens"), number(row, "params_B") / gpus);
    EXPECT_NEAR(bill.days / number(row, "days_300B_tokens"), 1, 0.013) << row.at("params_B");
    EXPECT_DOUBLE_EQ(bill.tokens, 300e9);
    EXPECT_DOUBLE_EQ(bill.price, 2.0 * 24 * bill.days * gpus);
  }
}

TEST(PublishedFlops, GiveTheRateOfMegatronTuring530B) {
  const Published model{.layers = 105, .hidden = 20480, .heads = 128};
  FormulaGate gate("E4 rate of Megatron-Turing 530B");
  for (const Row& row : published("mt_nlg_530b_selene")) {
    const double flops = flops_with_recomputation(model, number(row, "global_batch"));
    const double rate = flops / (number(row, "gpus") * number(row, "iter_s") * 1e12);
    gate.add(rate, number(row, "tflops_per_gpu"), 1.0);
    EXPECT_NEAR(rate / number(row, "tflops_per_gpu"), 1, 0.006);
  }
}

TEST(PredictedFlops, WithRecomputationAreThoseOfThePublishedFormulaButForCausalAttention) {
  const Published of{.layers = 4,
                     .hidden = 512,
                     .heads = 8,
                     .vocab = 51200,
                     .length = 256,
                     .micro = 2,
                     .recompute = "full",
                     .dropout = 0};
  const double all_pairs = 4 * 4.0 * 2 * 2 * 256 * 256 * 512;  // 4 passes of 2 products
  const double half = all_pairs * (256 + 1) / (2 * 256.0);

  const predict::StepTime time =
      predict::predict_step(plan_of(of), predict::find_machine("a100-80gb"));

  // The backward pass of fused attention multiplies scores once more: 5 products instead of 4.
  const double again = 4 * 2.0 * 2 * 256 * 512 * (256 + 1) / 2;
  const double head = 2 * 3 * 2.0 * 256 * 512 * 51200;  // the formula, too, does not recompute it
  const double formula = flops_with_recomputation(of, 2) - all_pairs + half + again;
  EXPECT_NEAR(time.hardware_flops / formula, 1, 0.01) << head;
}

}  // namespace
}  // namespace tessera::test

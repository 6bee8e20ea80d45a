// SPDX-License-Identifier: Apache-2.0
// Closed forms of memory against the published tables that they were read from.
#include "tessera/predict/formulas.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "predict/published.h"
#include <gtest/gtest.h>

#include "tessera/report/estimators.h"

namespace tessera::test {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

predict::ActivationSizes sizes_of(const Row& row) {
  return {.layers = number(row, "layers"),
          .heads = number(row, "heads"),
          .hidden = number(row, "hidden"),
          .length = 2048,
          .micro = number(row, "micro_batch"),
          .tensor = std::stoi(row.at("tp")),
          .pipeline = std::stoi(row.at("pp")),
          .chunks = std::stoi(row.at("virtual_chunks"))};
}

TEST(Formulas, OfZeroGiveTheStatesOfThePaper) {
  const std::map<std::string, double> parameters = {{"7.5B", 7.5e9}, {"128B", 128e9}, {"1T", 1e12}};
  FormulaGate gate("E2 states of ZeRO");
  for (const Row& row : published("zero_model_states_gb")) {
    for (const auto& [column, stage] :
         {std::pair("Pos_gb", 1), std::pair("Pos+g_gb", 2), std::pair("Pos+g+p_gb", 3)}) {
      const std::string printed = row.at(column);
      const double gb = predict::zero_state_bytes(
                            parameters.at(row.at("model")), stage, std::stoi(row.at("dp"))) /
                        1e9;
      gate.add(gb, std::stod(printed), parameters.at(row.at("model")));
      const std::size_t dot = printed.find('.');
      const double digit = dot == std::string::npos
                               ? 1
                               : std::pow(10.0, -static_cast<double>(printed.size() - dot - 1));
      // The paper rounds some figures and cuts off others (4187 for 4187.5).
      EXPECT_LT(std::abs(gb - std::stod(printed)), digit * (1 - 1e-9) + 1e-9)
          << row.at("model") << " on " << row.at("dp") << ", stage " << stage;
    }
  }
}

TEST(Formulas, OfActivationsAndStatesGiveFigure1OfKorthikanti) {
  FormulaGate gate("E3 figure 1 of Korthikanti");
  for (const Row& row : published("korthikanti_fig1_memory_gib")) {
    const predict::ActivationSizes sizes = sizes_of(row);
    const std::string& what = row.at("quantity");
    const double bytes = what == "params+optimizer" ? predict::layer_state_bytes(sizes)
                         : what == "activation none"
                             ? predict::activation_bytes(sizes, predict::Kept::All)
                             : predict::activation_bytes(sizes, predict::Kept::SequenceSelective);
    const double published_gib = number(row, "published_gib_per_gpu");
    gate.add(bytes / kGiB,
             published_gib,
             12 * sizes.layers * sizes.hidden * sizes.hidden / (sizes.tensor * sizes.pipeline));
    EXPECT_NEAR(bytes / kGiB, published_gib, 1e-9 * published_gib)
        << row.at("model") << " " << what;
  }
}

TEST(Formulas, OfActivationsGiveThePercentagesOfFigure7OfKorthikanti) {
  std::map<std::string, predict::ActivationSizes> models;
  for (const Row& row : published("korthikanti_fig1_memory_gib"))
    models[row.at("model")] = sizes_of(row);
  const std::map<std::string, predict::Kept> modes = {{"none", predict::Kept::All},
                                                      {"seq", predict::Kept::Sequence},
                                                      {"sel", predict::Kept::Selective},
                                                      {"seqsel", predict::Kept::SequenceSelective},
                                                      {"full", predict::Kept::Inputs}};
  FormulaGate gate("E3 figure 7 of Korthikanti");
  for (const Row& row : published("korthikanti_fig7_activation_pct")) {
    const predict::ActivationSizes& sizes = models.at(row.at("model"));
    const double share = predict::activation_bytes(sizes, modes.at(row.at("mode"))) /
                         predict::activation_bytes(sizes, predict::Kept::All);
    gate.add(100 * share, number(row, "published_pct_of_none"), 1.0);
    // Points: the figure was read from a picture.
    EXPECT_NEAR(100 * share, number(row, "published_pct_of_none"), 0.15)
        << row.at("model") << " " << row.at("mode");
  }
}

/// The exact numbers of parameters of the models in the table.
report::ModelSize size_of_model(const std::string& name) {
  if (name.starts_with("internlm2")) return {1'889'110'016, 189'530'112};
  if (name == "T0_3B") return {2'783'959'040, 65'798'144};
  if (name == "t5-3b") return {2'851'598'336, 32'899'072};
  return {2'851'000'000, 32'000'000};
}

TEST(Estimators, GiveEveryFigureThatDeepSpeedPrints) {
  std::size_t compared = 0;
  FormulaGate gate("E1 DeepSpeed's estimators, host");
  for (const Row& row : published("deepspeed_memory_estimator")) {
    const report::Machines machines{std::stoll(row.at("gpus_per_node")),
                                    std::stoll(row.at("nodes"))};
    const report::ModelSize size = size_of_model(row.at("model"));
    const bool third = row.at("zero_stage") == "3";
    const auto rows =
        third ? report::estimate_zero3(size, machines) : report::estimate_zero2(size, machines);
    std::string options = row.at("options").substr(0, row.at("options").find(" ["));
    for (const report::EstimateRow& ours : rows) {
      std::string mine;
      for (const char c : ours.options)
        if (c != ' ') mine += c == ',' ? ';' : c;
      if (mine != options) continue;
      const auto gib = [](std::int64_t bytes) {
        return std::round(100 * static_cast<double>(bytes) / kGiB) / 100;
      };
      EXPECT_DOUBLE_EQ(gib(ours.cpu_bytes), number(row, "published_cpu_gib"))
          << row.at("model") << options;
      gate.add(gib(ours.cpu_bytes),
               number(row, "published_cpu_gib"),
               static_cast<double>(size.total_params));
      // Stage 2 without offload is printed by a formula that DeepSpeed changed in 2024.
      if (third || options.find("none") == std::string::npos) {
        EXPECT_DOUBLE_EQ(gib(ours.gpu_bytes), number(row, "published_gpu_gib"))
            << row.at("model") << options;
      }
      ++compared;
    }
  }
  EXPECT_EQ(compared, 34U);
}

}  // namespace
}  // namespace tessera::test

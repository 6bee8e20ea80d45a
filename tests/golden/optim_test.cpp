// SPDX-License-Identifier: Apache-2.0
// Our optimizers on recorded gradients against what torch's and DeepSpeed's give in float64.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "golden.h"
#include <gtest/gtest.h>

#include "tessera/ops/fused_adamw.h"
#include "tessera/optim/rule.h"

namespace tessera {
namespace {

// fp32 weights, moments and gradients against float64: a few roundings of 6e-8 in each of ten
// steps.
constexpr double kTolerance = 1e-6;
constexpr std::int64_t kChunk = 1024;

bool starts_with(const std::string& text, const std::string& head) {
  return text.rfind(head, 0) == 0;
}

/// optimizer.type and the parameters that say in our words what the case's name, source and hyper
/// say in its own.
struct Setting {
  std::string type;
  json::Value params = json::Value::object();
  double max_norm = 0.0;
};

/// Nothing where the case's rule is not one of ours.
std::optional<Setting> setting_of(const json::Value& record) {
  const json::Value* name = record.find("optimizer");
  if (name == nullptr || !starts_with(name->as_string(), "adam")) return std::nullopt;
  const std::string source = golden::at(record, "source").as_string();
  Setting setting;
  setting.type = starts_with(name->as_string(), "adamw") ? "AdamW" : "Adam";
  for (const auto& [key, value] : golden::at(record, "hyper").members()) {
    if (key == "max_norm") {
      setting.max_norm = value.as_double();
    } else {
      setting.params[key] = value;
    }
  }
  if (setting.type == "Adam") setting.params["adam_w_mode"] = json::Value::boolean(false);
  if (source.find("bias_correction=false") != std::string::npos) {
    setting.params["bias_correction"] = json::Value::boolean(false);
  }
  return setting;
}

struct Tensor {
  std::vector<float> master, exp_avg, exp_avg_sq;
};

std::vector<float> floats(const json::Value& value) {
  const std::vector<double> wide = golden::numbers(value);
  return {wide.begin(), wide.end()};
}

void expect_close(const std::vector<float>& actual,
                  const json::Value& recorded,
                  const std::string& what) {
  const std::vector<double> expected = golden::numbers(recorded);
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0.0;
  for (const double value : expected)
    largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], kTolerance * largest) << what << " element " << i;
  }
}

/// Norm of all gradients together, as the trainer takes it: chunk sums of every tensor, folded in
/// order.
double norm_of(const std::map<std::string, std::vector<float>>& grads) {
  std::vector<double> sums;
  for (const auto& [name, grad] : grads) {
    const std::int64_t numel = static_cast<std::int64_t>(grad.size());
    const std::size_t first = sums.size();
    sums.resize(first + static_cast<std::size_t>((numel + kChunk - 1) / kChunk));
    ops::chunk_square_sums(grad.data(), numel, kChunk, sums.data() + first);
  }
  return optim::gradient_norm(sums);
}

std::unique_ptr<optim::Rule> make_rule(const Setting& setting) {
  config::Problems problems;
  config::Origins origins;
  auto rule = optim::rule_factory(setting.type)(setting.params, problems, origins);
  problems.raise();
  return rule;
}

void replay(const json::Value& record, const json::Value& start, const Setting& setting) {
  const auto rule = make_rule(setting);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, value] : start.members()) {
    const std::vector<float> master = floats(value);
    tensors[name] = {master, std::vector<float>(master.size()), std::vector<float>(master.size())};
  }
  for (const json::Value& step : golden::at(record, "steps").items()) {
    std::map<std::string, std::vector<float>> grads;
    for (const auto& [name, value] : golden::at(step, "grads").members())
      grads[name] = floats(value);
    const double norm = norm_of(grads);
    const double coefficient = optim::clip_coefficient(norm, setting.max_norm);
    const double recorded_norm = golden::at(step, "grad_norm").as_double();
    EXPECT_NEAR(norm, recorded_norm, kTolerance * recorded_norm);
    if (const json::Value* recorded = step.find("clip_coefficient"); recorded != nullptr) {
      EXPECT_NEAR(coefficient, recorded->as_double(), kTolerance);
    }
    const optim::UpdateScalars scalars{.lr = rule->base_lr(),
                                       .grad_scale = coefficient,
                                       .step = *golden::at(step, "step").as_integer()};
    for (auto& [name, tensor] : tensors) {
      rule->update({.master = tensor.master.data(),
                    .grad = grads.at(name).data(),
                    .state = {tensor.exp_avg.data(), tensor.exp_avg_sq.data()},
                    .numel = static_cast<std::int64_t>(tensor.master.size())},
                   scalars);
      expect_close(tensor.master,
                   golden::at(golden::at(step, "params_after"), name),
                   name + " after step " + std::to_string(scalars.step));
    }
  }
  for (const auto& [name, state] : golden::at(record, "final_state").members()) {
    expect_close(tensors.at(name).exp_avg, golden::at(state, "m"), "first moment of " + name);
    expect_close(tensors.at(name).exp_avg_sq, golden::at(state, "v"), "second moment of " + name);
  }
}

TEST(GoldenOptim, RulesFollowTheRecordedRuns) {
  const json::Value problem = golden::read_json(golden::folder() / "optim" / "problem.json");
  int replayed = 0;

  for (const auto& path : golden::cases("optim")) {
    const json::Value record = golden::read_json(path);
    const auto setting = setting_of(record);
    if (!setting) continue;
    SCOPED_TRACE(path.filename().string());
    replay(record, golden::at(problem, "start"), *setting);
    ++replayed;
  }

  EXPECT_GT(replayed, 0);
}

void check_clipping(const json::Value& record) {
  std::map<std::string, std::vector<float>> grads;
  for (const auto& [name, value] : golden::at(record, "grads").members())
    grads[name] = floats(value);

  const double norm = norm_of(grads);
  const double coefficient =
      optim::clip_coefficient(norm, golden::at(record, "max_norm").as_double());

  const double recorded = golden::at(record, "norm").as_double();
  EXPECT_NEAR(norm, recorded, kTolerance * recorded);
  EXPECT_NEAR(coefficient, golden::at(record, "coefficient").as_double(), kTolerance);
  for (auto& [name, grad] : grads) {
    for (float& value : grad)
      value *= static_cast<float>(coefficient);
    expect_close(grad, golden::at(golden::at(record, "clipped"), name), "clipped " + name);
  }
}

TEST(GoldenOptim, ClippingFollowsTheRecordedNorms) {
  int checked = 0;

  for (const auto& path : golden::cases("optim")) {
    const json::Value record = golden::read_json(path);
    if (record.find("rule") == nullptr || record.find("cases") == nullptr) continue;
    SCOPED_TRACE(path.filename().string());
    for (const json::Value& entry : golden::at(record, "cases").items()) {
      check_clipping(entry);
      ++checked;
    }
  }

  EXPECT_GT(checked, 0);
}

}  // namespace
}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Our optimizers on recorded gradients, compared with the results in float64 of the software that
// each case names.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "golden.h"
#include "support/rule_driver.h"
#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/optim/compressed.h"
#include "tessera/optim/lamb.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/compressed/compressed_reduce.h"

namespace tessera {
namespace {

// fp32 weights, moments and gradients against float64: a few roundings of 6e-8 in each of ten
// steps.
constexpr double kTolerance = 1e-6;
constexpr std::int64_t kChunk = 1024;

bool starts_with(const std::string& text, const std::string& head) {
  return text.rfind(head, 0) == 0;
}

/// Our name for a rule of the recorded cases.
struct Family {
  std::string name;  ///< name in a case, alone or followed by "_" and a variant
  std::string type;  ///< optimizer.type
};
const Family kFamilies[] = {{"adamw", "AdamW"},
                            {"adam", "Adam"},
                            {"adagrad", "Adagrad"},
                            {"lion", "Lion"},
                            {"sgd", "SGD"},
                            {"lamb_apex", "FusedLAMB"},
                            {"lamb_deepspeed", "Lamb"}};

/// optimizer.type and its parameters, translated from the case's name, source and hyperparameters.
struct Setting {
  std::string type;
  json::Value params = json::Value::object();
  double max_norm = 0.0;
  /// The case divides by the norm itself, ours by the norm + 1e-6.
  bool clips_without_epsilon = false;
};

Setting setting_of(const json::Value& record) {
  Setting setting;
  const std::string name = golden::at(record, "optimizer").as_string();
  for (const Family& family : kFamilies) {
    if (name == family.name || starts_with(name, family.name + "_")) setting.type = family.type;
  }
  for (const auto& [key, value] : golden::at(record, "hyper").members()) {
    if (key == "max_norm" || key == "max_grad_norm") {
      setting.max_norm = value.as_double();
      setting.clips_without_epsilon = key == "max_grad_norm";
    } else {
      setting.params[key] = value;
    }
  }
  const std::string source = golden::at(record, "source").as_string();
  if (setting.type == "Adam") setting.params["adam_w_mode"] = json::Value::boolean(false);
  if (source.find("bias_correction=false") != std::string::npos) {
    setting.params["bias_correction"] = json::Value::boolean(false);
  }
  return setting;
}

std::vector<float> floats(const json::Value& value) {
  const std::vector<double> wide = golden::numbers(value);
  return {wide.begin(), wide.end()};
}

/// Facts about a parameter given as nested arrays: two levels are a matrix.
optim::ParamFacts facts_of(const std::string& name, const json::Value& value) {
  optim::ParamFacts facts;
  facts.name = name;
  facts.matrix = value.items().front().is_array();
  facts.rows = facts.matrix ? static_cast<std::int64_t>(value.items().size()) : 1;
  facts.columns = static_cast<std::int64_t>(golden::numbers(value).size()) / facts.rows;
  return facts;
}

template <class T>
double largest(const std::vector<T>& values) {
  double out = 0.0;
  for (const T value : values)
    out = std::max(out, static_cast<double>(std::abs(value)));
  return out;
}

/// Relative to the largest of the recorded numbers, or to `scale` where that is more: numbers that
/// have been larger, or are sums of larger ones, keep the rounding of those.
void expect_close(const std::vector<float>& actual,
                  const json::Value& recorded,
                  const std::string& what,
                  double scale = 0.0) {
  const std::vector<double> expected = golden::numbers(recorded);
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const double tolerance = kTolerance * std::max(scale, largest(expected));
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], tolerance) << what << " element " << i;
}

/// Norm of all gradients together, as the trainer takes it: chunk sums of every tensor, reduced in
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

/// The coefficient of a step, compared with the recorded one where there is one.
double clip(const json::Value& step, double norm, const Setting& setting) {
  const double recorded_norm = golden::at(step, "grad_norm").as_double();
  EXPECT_NEAR(norm, recorded_norm, kTolerance * recorded_norm);
  const double ours = optim::clip_coefficient(norm, setting.max_norm);
  if (const json::Value* recorded = step.find("clip_coefficient"); recorded != nullptr) {
    // The 1e-6 under the fraction moves it by less than itself where it clips.
    const double epsilon = setting.clips_without_epsilon ? 1e-6 : 0.0;
    EXPECT_NEAR(ours, recorded->as_double(), kTolerance + epsilon);
  }
  const bool exact = setting.clips_without_epsilon && norm > setting.max_norm;
  return exact ? setting.max_norm / norm : ours;
}

/// Norms are weights and update, as both kinds of LAMB take them.
void check_trust_ratio(const json::Value& recorded,
                       const std::map<std::string, test::DrivenParam>& tensors,
                       const json::Value& params) {
  const json::Value *least = params.find("min_coeff"), *most = params.find("max_coeff");
  for (const auto& [name, ratio] : recorded.members()) {
    const std::vector<double>& norms = tensors.at(name).norms();
    ASSERT_EQ(norms.size(), 2U);
    const double ours = optim::lamb_trust_ratio(norms[0],
                                                norms[1],
                                                least == nullptr ? 0.0 : least->as_double(),
                                                most == nullptr ? HUGE_VAL : most->as_double());
    EXPECT_NEAR(ours, ratio.as_double(), kTolerance * ratio.as_double()) << name;
  }
}

/// The largest numbers that have gone into a tensor and into its moments.
struct Scale {
  double weights = 0.0, gradients = 0.0;
};
using Scales = std::map<std::string, Scale>;

void check_final_state(const json::Value& record,
                       const std::map<std::string, test::DrivenParam>& tensors,
                       const Scales& scales) {
  const std::map<std::string, std::vector<std::string>> ours = {
      {"m", {"exp_avg", "momentum_buffer"}}, {"v", {"exp_avg_sq", "sum"}}};
  for (const auto& [name, states] : golden::at(record, "final_state").members()) {
    for (const auto& [state, recorded] : states.members()) {
      const std::vector<float>* values = nullptr;
      for (const std::string& candidate : ours.at(state))
        values = values == nullptr ? tensors.at(name).state(candidate) : values;
      ASSERT_NE(values, nullptr) << "no state " << state << " of " << name;
      // Squares only add up; gradients cancel.
      const double scale = state == "m" ? scales.at(name).gradients : 0.0;
      expect_close(*values, recorded, state + " of " + name, scale);
    }
  }
}

void replay(const json::Value& record, const json::Value& start, const Setting& setting) {
  const auto rule = make_rule(setting);
  std::map<std::string, test::DrivenParam> tensors;
  Scales scales;
  for (const auto& [name, value] : start.members()) {
    tensors.try_emplace(name, *rule, facts_of(name, value), floats(value));
    scales[name].weights = largest(floats(value));
  }

  for (const json::Value& step : golden::at(record, "steps").items()) {
    std::map<std::string, std::vector<float>> grads;
    for (const auto& [name, value] : golden::at(step, "grads").members())
      grads[name] = floats(value);
    const json::Value& after = golden::at(step, "params_after");
    const optim::UpdateScalars scalars{.lr = rule->base_lr(),
                                       .grad_scale = clip(step, norm_of(grads), setting),
                                       .step = *golden::at(step, "step").as_integer()};
    for (auto& [name, tensor] : tensors) {
      tensor.update(grads.at(name), scalars);
      Scale& scale = scales.at(name);
      const std::string what = name + " after step " + std::to_string(scalars.step);
      expect_close(tensor.master(), golden::at(after, name), what, scale.weights);
      scale.weights = std::max(scale.weights, largest(tensor.master()));
      scale.gradients = std::max(scale.gradients, scalars.grad_scale * largest(grads.at(name)));
    }
    if (const json::Value* ratios = step.find("trust_ratio"); ratios != nullptr) {
      check_trust_ratio(*ratios, tensors, setting.params);
    }
  }
  check_final_state(record, tensors, scales);
}

// One worker's part of a case with several, each a thread with its own gradients.
struct Worker {
  comm::World& world;
  const json::Value& record;
  const optim::CompressedRule& rule;
  parallel::CompressedReduce& reduce;
  std::vector<float> momentum, master, square;
};

std::vector<float> gradient_of(const json::Value& record, std::size_t step, std::size_t worker) {
  return floats(golden::at(record, "gradients_step_worker_element").items()[step].items()[worker]);
}

std::vector<float> mean_gradient(const json::Value& record, std::size_t step, std::size_t workers) {
  std::vector<float> mean(gradient_of(record, step, 0).size(), 0.0F);
  for (std::size_t w = 0; w < workers; ++w) {
    const std::vector<float> own = gradient_of(record, step, w);
    for (std::size_t i = 0; i < mean.size(); ++i)
      mean[i] += own[i] / static_cast<float>(workers);
  }
  return mean;
}

void step_of_worker(Worker& worker, std::size_t index) {
  const auto workers = static_cast<std::size_t>(worker.world.size());
  const optim::UpdateScalars scalars{.lr = worker.rule.base_lr(),
                                     .step = static_cast<std::int64_t>(index) + 1};
  optim::CompressedView view;
  view.master = worker.master.data();
  view.state = {worker.momentum.data(), worker.square.data()};
  view.numel = static_cast<std::int64_t>(worker.master.size());
  const bool exact = worker.rule.exchange(scalars.step) == optim::Exchange::Gradients;
  const std::vector<float> gradient =
      exact ? mean_gradient(worker.record, index, workers)
            : gradient_of(worker.record, index, static_cast<std::size_t>(worker.world.rank()));
  view.grad = gradient.data();
  if (exact) {
    worker.rule.update(view, scalars);
    return;
  }
  worker.rule.local(view, scalars);
  worker.reduce.mean(worker.momentum.data());
  worker.rule.finish(view, scalars);
}

void check_worker(Worker& worker, double largest_momentum) {
  const json::Value& final_state = golden::at(worker.record, "final_state");
  const auto rank = static_cast<std::size_t>(worker.world.rank());
  expect_close(worker.square, golden::at(final_state, "v"), "v");
  const auto own = [](std::span<float> values) {
    return std::vector<float>(values.begin(), values.end());
  };
  expect_close(own(worker.reduce.worker_error(0)),
               golden::at(final_state, "worker_error").items()[rank],
               "worker error",
               largest_momentum);
  expect_close(own(worker.reduce.server_error(0)),
               golden::at(final_state, "server_error").items()[rank],
               "server error",
               largest_momentum);
}

/// 1-bit Adam: its own data, several workers, error feedback.
void replay_workers(const json::Value& record) {
  Setting setting = setting_of(record);
  setting.type = "OneBitAdam";
  setting.params["freeze_step"] = golden::at(record, "uncompressed_steps");
  const std::unique_ptr<optim::Rule> rule = make_rule(setting);
  const auto& compressed = dynamic_cast<const optim::CompressedRule&>(*rule);
  const auto workers = static_cast<int>(*golden::at(record, "workers").as_integer());
  const std::vector<float> start = floats(golden::at(record, "start"));
  std::mutex one_at_a_time;

  comm::run_threads(workers, [&](comm::World& world) {
    const auto numel = static_cast<std::int64_t>(start.size());
    parallel::CompressedReduce reduce(world, world.everyone(), {numel});
    Worker worker{world, record, compressed, reduce, {}, start, std::vector<float>(start.size())};
    worker.momentum.resize(static_cast<std::size_t>(reduce.numel()));
    double scale = largest(start), largest_momentum = 0.0;
    for (std::size_t i = 0; i < golden::at(record, "steps").items().size(); ++i) {
      step_of_worker(worker, i);

      const std::lock_guard lock(one_at_a_time);
      const json::Value& step = golden::at(record, "steps").items()[i];
      const std::string what = "step " + std::to_string(i + 1);
      expect_close(worker.master, golden::at(step, "params_after"), "weights, " + what, scale);
      scale = std::max(scale, largest(worker.master));
      const std::vector<float> momentum(
          worker.momentum.begin(), worker.momentum.begin() + static_cast<std::ptrdiff_t>(numel));
      largest_momentum = std::max(largest_momentum, largest(momentum));
      expect_close(
          momentum, golden::at(step, "momentum_after"), "momentum, " + what, largest_momentum);
    }
    const std::lock_guard lock(one_at_a_time);
    check_worker(worker, largest_momentum);
  });
}

TEST(GoldenOptim, RulesFollowTheRecordedRuns) {
  const json::Value problem = golden::read_json(golden::folder() / "optim" / "problem.json");
  int replayed = 0;

  for (const auto& path : golden::cases("optim")) {
    const json::Value record = golden::read_json(path);
    if (record.find("optimizer") == nullptr) continue;  // the problem, and clipping
    SCOPED_TRACE(path.filename().string());
    if (record.find("workers") != nullptr) continue;  // below
    const Setting setting = setting_of(record);
    ASSERT_FALSE(setting.type.empty()) << "a rule that is not ours";
    replay(record, golden::at(problem, "start"), setting);
    ++replayed;
  }

  EXPECT_GT(replayed, 0);
}

TEST(GoldenOptim, OneBitAdamFollowsTheRecordedRunsOfSeveralWorkers) {
  int replayed = 0;

  for (const auto& path : golden::cases("optim")) {
    const json::Value record = golden::read_json(path);
    if (record.find("workers") == nullptr) continue;
    SCOPED_TRACE(path.filename().string());
    replay_workers(record);
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

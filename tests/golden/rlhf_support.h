// SPDX-License-Identifier: Apache-2.0
// Tensors of recorded cases of preference optimisation and reinforcement learning, and comparisons
// of losses and gradients with them.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "golden.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace tessera::golden {

// Expected values were computed in float64, in another order of summation.
inline constexpr double kTolerance = 1e-10;

inline std::vector<std::int64_t> shape_of(const json::Value& value) {
  std::vector<std::int64_t> out;
  for (const json::Value* at = &value; at->is_array(); at = &at->items().front()) {
    out.push_back(static_cast<std::int64_t>(at->items().size()));
    if (at->items().empty()) break;
  }
  return out;
}

inline void append_doubles(const json::Value& value, std::vector<double>& out) {
  if (value.is_array()) {
    for (const json::Value& item : value.items())
      append_doubles(item, out);
  } else if (value.is_null()) {
    out.push_back(std::numeric_limits<double>::quiet_NaN());
  } else if (value.is_bool()) {
    out.push_back(value.as_bool() ? 1.0 : 0.0);
  } else {
    out.push_back(value.as_double());
  }
}

/// Nested arrays as a float64 tensor; null is NaN.
inline at::Tensor doubles(const json::Value& value) {
  std::vector<double> numbers;
  append_doubles(value, numbers);
  return at::tensor(numbers, at::kDouble).view(shape_of(value));
}
inline at::Tensor integers(const json::Value& value) {
  return doubles(value).to(at::kLong);
}
/// A tensor that gradients are asked of.
inline at::Tensor leaf(const at::Tensor& value) {
  return value.detach().clone().set_requires_grad(true);
}

/// Error relative to the size of the number where that is above 1.
inline void expect_near(double ours, double recorded, const std::string& what) {
  EXPECT_NEAR(ours, recorded, kTolerance * std::max(1.0, std::abs(recorded))) << what;
}
inline void expect_near(const at::Tensor& ours,
                        const json::Value& recorded,
                        const std::string& what) {
  if (!recorded.is_array()) {
    expect_near(ours.item<double>(), recorded.as_double(), what);
    return;
  }
  const at::Tensor wanted = doubles(recorded);
  ASSERT_EQ(ours.sizes(), wanted.sizes()) << what;
  const at::Tensor ours_flat = ours.detach().to(at::kDouble).contiguous().flatten(),
                   wanted_flat = wanted.flatten();
  for (std::int64_t i = 0; i < wanted_flat.numel(); ++i) {
    expect_near(ours_flat[i].item<double>(),
                wanted_flat[i].item<double>(),
                what + " element " + std::to_string(i));
  }
}
inline at::Tensor gradient(const at::Tensor& loss, const at::Tensor& of) {
  const at::Tensor grad =
      torch::autograd::grad({loss}, {of}, {}, /*retain_graph=*/true, false, true).front();
  return grad.defined() ? grad : at::zeros_like(of);
}

/// What the test does with each key of `object`; a key without an entry fails the test.
using Readers = std::map<std::string, std::function<void(const json::Value&)>>;
inline void read_keys(const json::Value& object, const Readers& readers) {
  for (const auto& [key, value] : object.members()) {
    const auto reader = readers.find(key);
    if (reader == readers.end()) {
      ADD_FAILURE() << "a case with the key \"" << key << "\", which this test does not know";
      continue;
    }
    reader->second(value);
  }
}
inline std::function<void(const json::Value&)> into(double& out) {
  return [&out](const json::Value& value) { out = value.as_double(); };
}
inline std::function<void(const json::Value&)> into(bool& out) {
  return [&out](const json::Value& value) { out = value.as_bool(); };
}
inline std::function<void(const json::Value&)> into(std::string& out) {
  return [&out](const json::Value& value) { out = value.as_string(); };
}

/// The test that checks a file of the folder, by the file's name; several test files share the
/// folder.
inline const std::vector<std::string>& files_of_pairs() {
  static const std::vector<std::string> names = {"dpo.json",
                                                 "reward_pairwise.json",
                                                 "trl_cpo.json",
                                                 "trl_dpo.json",
                                                 "trl_kto.json",
                                                 "trl_orpo.json",
                                                 "trl_reward.json"};
  return names;
}
inline const std::vector<std::string>& files_of_policies() {
  static const std::vector<std::string> names = {"gae.json",
                                                 "kl_estimators.json",
                                                 "ppo.json",
                                                 "trl_advantages.json",
                                                 "trl_grpo.json",
                                                 "trl_logps.json"};
  return names;
}

/// Calls check(record) for each of `known` that the folder has, which must be one at least.
inline void check_files(const std::map<std::string, void (*)(const json::Value&)>& known) {
  int checked = 0;
  for (const fs::path& path : cases("rlhf")) {
    const auto check = known.find(path.filename().string());
    if (check == known.end()) continue;
    SCOPED_TRACE(path.filename().string());
    check->second(read_json(path));
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

}  // namespace tessera::golden

// SPDX-License-Identifier: Apache-2.0
// A call of every update of a backend, on ranges of random numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/support.h"

#include "tessera/ops/backend.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops {

using Results = std::vector<at::Tensor>;

/// A run of weights, a gradient, and three values of state for each, in memory of a device.
struct UpdatedRange {
  at::Tensor master, grad, first, second, third, working;
  RuleRange range;

  explicit UpdatedRange(DType dtype,
                        std::int64_t numel = 2500,
                        c10::Device device = c10::DeviceType::CPU)
      : master(random({numel}, 1).to(device)),
        grad(random({numel}, 2).to(device)),
        first((random({numel}, 3) * 0.1).to(device)),
        second((random({numel}, 4).abs() * 0.01 + 0.02).to(device)),
        third((random({numel}, 5) * 0.1).to(device)),
        working(at::zeros({numel}, dtype == DType::F16 ? at::kHalf : at::kBFloat16).to(device)) {
    range = {
        .master = master.data_ptr<float>(),
        .grad = grad.data_ptr<float>(),
        .working = dtype == DType::F32 ? nullptr : static_cast<std::uint16_t*>(working.data_ptr()),
        .working_dtype = dtype == DType::F32 ? DType::BF16 : dtype,
        .numel = numel,
        .grad_scale = 0.5,
        .device = from_torch(device)};
  }
  [[nodiscard]] float* state(const at::Tensor& values) const { return values.data_ptr<float>(); }
  [[nodiscard]] Results all() const { return {master, grad, first, second, third, working}; }
};

/// Updates a range with a backend.
using Update = std::function<void(const Backend&, const UpdatedRange&)>;
/// Every update that a backend has, by name. One uses the range as a matrix of 50 x 50.
inline std::vector<std::pair<std::string, Update>> all_updates() {
  const auto one = [](const UpdatedRange& d) { return d.state(d.first); };
  const auto two = [](const UpdatedRange& d) { return d.state(d.second); };
  const auto three = [](const UpdatedRange& d) { return d.state(d.third); };
  const auto adamw = [=](AdamWScalars s) {
    return [=](const Backend& on, const UpdatedRange& d) { on.adamw(d.range, one(d), two(d), s); };
  };
  const LambStep lamb = {.correction1 = 0.2, .correction2 = 0.1, .l2 = 0.05, .weight_decay = 0.1};
  const SgdStep sgd = {
      .lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .add = 0.8, .nesterov = true};
  const RmspropStep rmsprop = {.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1};
  return {
      {"AdamW", adamw({.lr = 1e-2, .weight_decay = 0.1, .step = 3, .grad_scale = 0.5})},
      {"Adam",
       adamw({.lr = 1e-2,
              .weight_decay = 0.1,
              .grad_scale = 0.5,
              .decoupled = false,
              .bias_correction = false})},
      {"SGD", [=](const Backend& on, const UpdatedRange& d) { on.sgd(d.range, one(d), sgd); }},
      {"SGD without a buffer",
       [=](const Backend& on, const UpdatedRange& d) { on.sgd(d.range, nullptr, sgd); }},
      {"Adagrad",
       [=](const Backend& on, const UpdatedRange& d) {
         on.adagrad(
             d.range, two(d), {.lr = 1e-2, .eps = 1e-8, .weight_decay = 0.1, .initial = 0.1});
       }},
      {"Lion",
       [=](const Backend& on, const UpdatedRange& d) {
         on.lion(d.range, one(d), {.lr = 1e-2, .weight_decay = 0.1});
       }},
      {"RMSprop",
       [=](const Backend& on, const UpdatedRange& d) {
         on.rmsprop(d.range, two(d), one(d), three(d), rmsprop);
       }},
      {"plain RMSprop",
       [=](const Backend& on, const UpdatedRange& d) {
         on.rmsprop(d.range, two(d), nullptr, nullptr, rmsprop);
       }},
      {"NAdam",
       [=](const Backend& on, const UpdatedRange& d) {
         on.nadam(
             d.range,
             one(d),
             two(d),
             {.grad_rate = 1e-3, .avg_rate = 1e-2, .correction2 = 0.1, .l2 = 0.1, .decay = 1e-3});
       }},
      {"Adamax",
       [=](const Backend& on, const UpdatedRange& d) {
         on.adamax(d.range, one(d), two(d), {.rate = 1e-2, .weight_decay = 0.1});
       }},
      {"LAMB",
       [=](const Backend& on, const UpdatedRange& d) {
         on.lamb_update(d.range, one(d), two(d), lamb, 0.01);
       }},
      {"a direction",
       [=](const Backend& on, const UpdatedRange& d) {
         on.make_direction(d.range, one(d), three(d), 0.9, true);
       }},
      {"a direction in the gradient's place",
       [=](const Backend& on, const UpdatedRange& d) {
         on.make_direction(d.range, nullptr, d.state(d.grad), 0.0, false);
       }},
      {"a step along a direction",
       [=](const Backend& on, const UpdatedRange& d) {
         on.apply_direction(d.range, three(d), one(d), {.rate = 1e-2, .decay = 1e-3, .beta1 = 0.9});
       }},
      {"factors of rows and columns", [=](const Backend& on, const UpdatedRange& d) {
         on.scale_rows_columns(d.state(d.master), 50, 50, one(d), two(d), c10::DeviceType::CPU);
       }}};
}

}  // namespace tessera::ops

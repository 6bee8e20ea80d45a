// SPDX-License-Identifier: Apache-2.0
// Layers on the parts of parameters that a rank holds, and their results.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/nn/step_context.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

inline double error_of(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor wanted = expected.detach().to(at::kDouble);
  return (ours.detach().to(at::kDouble) - wanted).norm().item<double>() /
         wanted.norm().item<double>();
}

/// A whole value, its logical axes, and what heads need.
struct Declared {
  at::Tensor value;
  std::vector<LogicalAxis> axes;
  std::int64_t unit = 1;
  std::optional<Role> role = {};  ///< absent: a vector where one dim has an axis, or by the axes
};

inline at::Tensor part_of(const at::Tensor& whole, const mesh::Box& box) {
  at::Tensor part = whole;
  for (std::size_t d = 0; d < box.begin.size(); ++d)
    part = part.narrow(static_cast<std::int64_t>(d), box.begin[d], box.end[d] - box.begin[d]);
  return part;
}

/// The part of a parameter that a rank holds, with an open sink.
class PlacedParam {
 public:
  PlacedParam(const Declared& declared, const TensorParallel* tensor) : param_(info(declared)) {
    place(param_, tensor, nullptr);
    const at::Tensor part = part_of(declared.value, param_.info().held());
    param_.attach(part.detach().clone(at::MemoryFormat::Contiguous).set_requires_grad(true));
    grad_ = at::full(part.sizes(), 123.0F, at::kFloat);
    param_.grad().open(grad_);
  }
  operator const Param&() const { return param_; }  // NOLINT(google-explicit-constructor)
  const Param* operator&() const { return &param_; }
  /// This rank's expected part of the whole gradient.
  [[nodiscard]] at::Tensor part(const at::Tensor& whole) const {
    return part_of(whole, param_.info().held());
  }
  at::Tensor grad() {
    param_.grad().close();
    return grad_;
  }

 private:
  static std::shared_ptr<const ParamInfo> info(const Declared& declared) {
    ParamInfo info;
    info.name = "test";
    info.shape = declared.value.sizes().vec();
    info.matrix_shape = info.shape;
    info.axes = declared.axes;
    info.unit = declared.unit;
    const auto named = std::count_if(info.axes.begin(), info.axes.end(), [](LogicalAxis axis) {
      return axis != LogicalAxis::None;
    });
    const Role role = named == 1 ? Role::Vector : role_of(info.shape, info.axes, info.matrix_shape);
    info.role = declared.role.value_or(role);
    return std::make_shared<const ParamInfo>(std::move(info));
  }
  Param param_;
  at::Tensor grad_;
};

/// Results of a function of (x, parameters): its value, and gradients of x and the parameters.
struct Result {
  at::Tensor y, dx;
  std::vector<at::Tensor> grads;
};
using Layers =
    std::function<at::Tensor(const at::Tensor& x, const std::vector<PlacedParam>&, StepContext&)>;

/// Runs `layers` with parts of the parameters; x and dy are this rank's parts.
inline Result run(const Layers& layers,
                  const at::Tensor& x,
                  const at::Tensor& dy,
                  std::vector<PlacedParam>& params,
                  StepContext& context) {
  const at::Tensor in = x.detach().clone().set_requires_grad(true);
  std::vector<at::Tensor> inputs = {in};
  for (const PlacedParam& param : params)
    inputs.push_back(static_cast<const Param&>(param).tensor());
  Result out;
  out.y = layers(in, params, context);
  const auto grads = torch::autograd::grad(
      {out.y}, inputs, {dy.to(out.y.scalar_type())}, std::nullopt, false, true);
  out.dx = grads[0];
  for (PlacedParam& param : params)
    out.grads.push_back(param.grad());
  return out;
}

inline std::vector<PlacedParam> placed(const std::vector<Declared>& declared,
                                       const TensorParallel* tensor) {
  std::vector<PlacedParam> out;
  out.reserve(declared.size());
  for (const Declared& one : declared)
    out.emplace_back(one, tensor);
  return out;
}

}  // namespace tessera::nn

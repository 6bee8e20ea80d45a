// SPDX-License-Identifier: Apache-2.0
// A parameter outside of any model: a value and an open gradient sink.
#pragma once

#include <memory>
#include <string>

#include <ATen/ATen.h>

#include "tessera/tensor/param.h"

namespace tessera::test {

class TestParam {
 public:
  explicit TestParam(const at::Tensor& value, bool trainable = true)
      : param_(info(value, trainable)) {
    param_.attach(value.detach().clone().set_requires_grad(trainable));
    // Garbage, so that a gradient that is not written whole shows.
    grad_ = at::full(value.sizes(), 123.0F, value.options().dtype(at::kFloat));
    param_.grad().open(grad_);
  }
  operator const Param&() const { return param_; }  // NOLINT(google-explicit-constructor)
  const Param* operator&() const { return &param_; }
  [[nodiscard]] const at::Tensor& tensor() const { return param_.tensor(); }
  [[nodiscard]] const at::Tensor& grad() const { return grad_; }
  [[nodiscard]] GradSink& sink() const { return param_.grad(); }

 private:
  static std::shared_ptr<const ParamInfo> info(const at::Tensor& value, bool trainable) {
    ParamInfo info;
    info.name = "test";
    info.shape = value.sizes().vec();
    info.matrix_shape = info.shape;
    info.axes.assign(info.shape.size(), LogicalAxis::None);
    info.role = role_of(info.shape, info.axes, info.matrix_shape);
    info.trainable = trainable;
    return std::make_shared<const ParamInfo>(std::move(info));
  }
  Param param_;
  at::Tensor grad_;
};

/// Largest difference relative to the largest expected value.
inline double relative_error(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor wanted = expected.detach().to(at::kDouble), got = ours.detach().to(at::kDouble);
  const double scale = wanted.abs().max().item<double>();
  return (got.reshape_as(wanted) - wanted).abs().max().item<double>() / (scale > 0 ? scale : 1.0);
}

}  // namespace tessera::test

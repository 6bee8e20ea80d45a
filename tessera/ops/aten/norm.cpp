// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/norm.h"

#include <ATen/ATen.h>

#include "tessera/ops/aten/backend.h"

namespace tessera::ops::aten {
namespace {

at::Tensor float_rows(const at::Tensor& x_NC) {
  return x_NC.reshape({-1, x_NC.size(-1)}).to(at::kFloat);
}

/// One value per channel.
at::Tensor channels(const at::Tensor& values_C) {
  return values_C.reshape({-1}).to(at::kFloat);
}

void add_columns(const at::Tensor& rows_NC, bool accumulate, const at::Tensor& to_C) {
  if (!to_C.defined()) return;
  const at::Tensor sums = rows_NC.to(at::kDouble).sum(0).view(to_C.sizes());
  to_C.copy_(accumulate ? to_C + sums : sums);
}

}  // namespace

void AtenBackend::norm(const NormArgs& args) const {
  at::Tensor x = args.x_NC;
  if (args.key != nullptr) {
    dropout(args.branch_NC, x, *args.key, args.sum_NC);
    x = args.sum_NC;
  } else if (args.branch_NC.defined()) {
    args.sum_NC.copy_(x.to(at::kFloat) + args.branch_NC.to(x.scalar_type()).to(at::kFloat));
    x = args.sum_NC;
  }
  at::Tensor centred = float_rows(x);
  if (args.mean_N.defined()) {
    const at::Tensor mean = centred.mean(1, /*keepdim=*/true);
    args.mean_N.copy_(mean.view(args.mean_N.sizes()));
    centred = centred - mean;
  }
  const at::Tensor variance = centred.square().mean(1, /*keepdim=*/true).to(at::kDouble);
  const at::Tensor rstd = (variance + args.eps).sqrt().reciprocal().to(at::kFloat);
  args.rstd_N.copy_(rstd.view(args.rstd_N.sizes()));
  at::Tensor y = centred * rstd * channels(args.weight_C);
  if (args.bias_C.defined()) y = y + channels(args.bias_C);
  args.y_NC.copy_(y.view(args.y_NC.sizes()));
}

void AtenBackend::norm_backward(const NormGradArgs& args) const {
  const bool centred = args.mean_N.defined();
  const at::Tensor x = float_rows(args.x_NC), rstd = args.rstd_N.reshape({-1, 1});
  const at::Tensor normal = (centred ? x - args.mean_N.reshape({-1, 1}) : x) * rstd;
  const at::Tensor d = args.dy_NC.reshape(x.sizes()).to(args.x_NC.scalar_type()).to(at::kFloat);
  add_columns(d * normal, args.accumulate_weight, args.dweight_C);
  add_columns(d, args.accumulate_bias, args.dbias_C);
  if (!args.dx_NC.defined()) return;
  const at::Tensor g = d * channels(args.weight_C);
  at::Tensor dx = g - normal * (g * normal).mean(1, /*keepdim=*/true);
  if (centred) dx = dx - g.mean(1, /*keepdim=*/true);
  dx = dx * rstd;
  if (args.plus_NC.defined()) {
    dx = dx + args.plus_NC.reshape(x.sizes()).to(args.x_NC.scalar_type()).to(at::kFloat);
  }
  args.dx_NC.copy_(dx.view(args.dx_NC.sizes()));
  if (args.key != nullptr) dropout(args.dx_NC, {}, *args.key, args.dbranch_NC);
}

}  // namespace tessera::ops::aten

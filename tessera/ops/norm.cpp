// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/norm.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/op_log.h"
#include "tessera/ops/op_trace.h"

namespace tessera::ops {
namespace {

/// Names for errors and the log of operations.
struct Norm {
  const char* name;
  const char* backward_name;
  bool has_mean;
};
constexpr Norm kLayerNorm = {"layer_norm", "layer_norm backward", true};
constexpr Norm kRmsNorm = {"rms_norm", "rms_norm backward", false};

void check_channels(const Norm& norm,
                    const at::Tensor& x,
                    const at::Tensor& weight,
                    const at::Tensor& bias) {
  const std::int64_t C = x.dim() > 0 ? x.size(-1) : 0;
  const auto fits = [C](const at::Tensor& one_each) {
    return !one_each.defined() || one_each.numel() == C;
  };
  TESSERA_REQUIRE(C > 0 && fits(weight) && fits(bias),
                  Shape,
                  norm.name + (" of " + shape(x)) + " with a weight of " +
                      (weight.defined() ? shape(weight) : "none"),
                  "weight and bias need one value for each of the input's last dimension");
}

/// Checks the tensor that is added to x, or to its gradient; it may be undefined.
void check_addend(const Norm& norm, const at::Tensor& x, const at::Tensor& plus) {
  TESSERA_REQUIRE(!plus.defined() || plus.sizes() == x.sizes(),
                  Shape,
                  norm.name + (" of " + shape(x)) + " plus " + shape(plus),
                  "give both one shape");
}

void check_drop(const at::Tensor& x, const DropoutKey& key) {
  check_dropout(x, key);
  if (x.numel() > 0) dropout_runs(x, key);
}

bool on_gpu(const at::Tensor& x) {
  return !x.is_cpu() && !x.is_meta();
}

LayerNormOut forward(const Norm& norm,
                     const at::Tensor& x_NC,
                     const at::Tensor& weight_C,
                     const at::Tensor& bias_C,
                     double eps,
                     const at::Tensor& branch_NC,
                     const DropoutKey& key) {
  check_channels(norm, x_NC, weight_C, bias_C);
  check_addend(norm, x_NC, branch_NC);
  const bool drops = branch_NC.defined() && key.active();
  const std::int64_t C = x_NC.size(-1), N = x_NC.numel() / C;
  const at::TensorOptions floats = x_NC.options().dtype(at::kFloat);
  LayerNormOut out{at::empty_like(x_NC, x_NC.options(), at::MemoryFormat::Contiguous),
                   norm.has_mean ? at::empty({N}, floats) : at::Tensor(),
                   at::empty({N}, floats),
                   x_NC};
  if (branch_NC.defined()) out.x_NC = at::empty_like(out.y_NC);
  const OpScope scope(norm.name, [&] {
    // The CPU adds a branch that it drops in a pass of its own.
    const double passes = !branch_NC.defined() ? 2.0 : drops && !on_gpu(x_NC) ? 5.0 : 4.0;
    return OpWork{.bytes = passes * static_cast<double>(x_NC.nbytes()),
                  .shape = shape(x_NC),
                  .shape_class = ShapeClass::Rows};
  });
  if (x_NC.is_meta()) return out;
  if (drops) check_drop(branch_NC, key);
  backend(x_NC.device())
      .norm({.x_NC = x_NC,
             .weight_C = weight_C,
             .bias_C = bias_C,
             .branch_NC = branch_NC,
             .eps = eps,
             .y_NC = out.y_NC,
             .mean_N = out.mean_N,
             .rstd_N = out.rstd_N,
             .sum_NC = out.x_NC,
             .key = drops && x_NC.numel() > 0 ? &key : nullptr});
  if (drops) return out;  // a graph of operations has no random numbers
  trace_call(norm.has_mean ? "tessera::layer_norm" : "tessera::rms_norm",
             [&] {
               return std::vector<c10::IValue>{x_NC, weight_C, bias_C, branch_NC, eps};
             },
             {out.y_NC, branch_NC.defined() ? out.x_NC : at::Tensor()});
  return out;
}

at::Tensor backward(const Norm& norm,
                    const at::Tensor& dy_NC,
                    const at::Tensor& x_NC,
                    const at::Tensor& mean_N,
                    const at::Tensor& rstd_N,
                    const at::Tensor& weight_C,
                    const at::Tensor& dweight_C,
                    bool accumulate_weight,
                    const at::Tensor& dbias_C,
                    bool accumulate_bias,
                    const at::Tensor& plus_NC,
                    BranchGrad* branch) {
  check_channels(norm, x_NC, weight_C, {});
  check_addend(norm, x_NC, plus_NC);
  TESSERA_ASSERT(branch == nullptr || (branch->key->active() && weight_C.defined()));
  at::Tensor dx;
  if (weight_C.defined()) dx = at::empty_like(x_NC, x_NC.options(), at::MemoryFormat::Contiguous);
  if (branch != nullptr) branch->dbranch = at::empty_like(dx);
  const OpScope scope(norm.backward_name, [&] {
    // The CPU drops the gradient of a branch in a pass of its own.
    const double of_branch = branch == nullptr ? 0.0 : on_gpu(x_NC) ? 1.0 : 2.0;
    const double passes =
        2.0 + (dx.defined() ? 1.0 : 0.0) + (plus_NC.defined() ? 1.0 : 0.0) + of_branch;
    return OpWork{.bytes = passes * static_cast<double>(x_NC.nbytes()),
                  .shape = shape(x_NC),
                  .shape_class = ShapeClass::Rows};
  });
  if (x_NC.is_meta()) return dx;
  if (dweight_C.defined()) check_destination(dweight_C, x_NC.size(-1), "dweight");
  if (dbias_C.defined()) check_destination(dbias_C, x_NC.size(-1), "dbias");
  const bool drops = branch != nullptr && x_NC.numel() > 0;
  if (drops) check_drop(x_NC, *branch->key);
  backend(x_NC.device())
      .norm_backward({.dy_NC = dy_NC,
                      .x_NC = x_NC,
                      .mean_N = mean_N,
                      .rstd_N = rstd_N,
                      .weight_C = weight_C,
                      .plus_NC = plus_NC,
                      .dx_NC = dx,
                      .dweight_C = dweight_C,
                      .dbias_C = dbias_C,
                      .accumulate_weight = accumulate_weight,
                      .accumulate_bias = accumulate_bias,
                      .key = drops ? branch->key : nullptr,
                      .dbranch_NC = drops ? branch->dbranch : at::Tensor()});
  return dx;
}

}  // namespace

LayerNormOut layer_norm(const at::Tensor& x_NC,
                        const at::Tensor& weight_C,
                        const at::Tensor& bias_C,
                        double eps,
                        const at::Tensor& branch_NC,
                        const DropoutKey& key) {
  return forward(kLayerNorm, x_NC, weight_C, bias_C, eps, branch_NC, key);
}

at::Tensor layer_norm_backward(const at::Tensor& dy_NC,
                               const at::Tensor& x_NC,
                               const at::Tensor& mean_N,
                               const at::Tensor& rstd_N,
                               const at::Tensor& weight_C,
                               const at::Tensor& dweight_C,
                               bool accumulate_weight,
                               const at::Tensor& dbias_C,
                               bool accumulate_bias,
                               const at::Tensor& plus_NC,
                               BranchGrad* branch) {
  return backward(kLayerNorm,
                  dy_NC,
                  x_NC,
                  mean_N,
                  rstd_N,
                  weight_C,
                  dweight_C,
                  accumulate_weight,
                  dbias_C,
                  accumulate_bias,
                  plus_NC,
                  branch);
}

RmsNormOut rms_norm(const at::Tensor& x_NC,
                    const at::Tensor& weight_C,
                    double eps,
                    const at::Tensor& branch_NC,
                    const DropoutKey& key) {
  const LayerNormOut out = forward(kRmsNorm, x_NC, weight_C, {}, eps, branch_NC, key);
  return {out.y_NC, out.rstd_N, out.x_NC};
}

at::Tensor rms_norm_backward(const at::Tensor& dy_NC,
                             const at::Tensor& x_NC,
                             const at::Tensor& rstd_N,
                             const at::Tensor& weight_C,
                             const at::Tensor& dweight_C,
                             bool accumulate_weight,
                             const at::Tensor& plus_NC,
                             BranchGrad* branch) {
  return backward(kRmsNorm,
                  dy_NC,
                  x_NC,
                  {},
                  rstd_N,
                  weight_C,
                  dweight_C,
                  accumulate_weight,
                  {},
                  false,
                  plus_NC,
                  branch);
}

}  // namespace tessera::ops

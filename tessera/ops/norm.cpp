// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/norm.h"

#include <ATen/ATen.h>

#include "tessera/ops/cpu/row_blocks.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

/// Elements that make a share of work worth a thread.
constexpr std::int64_t kGrainElements = 8192;

std::int64_t rows_per_thread(std::int64_t channels) {
  return std::max<std::int64_t>(1, kGrainElements / std::max<std::int64_t>(1, channels));
}

/// One of the two.
struct Norm {
  const char* name;
  const char* backward_name;
  bool has_mean;
  decltype(cpu::Kernels::layer_norm) cpu::Kernels::*forward;
  decltype(cpu::Kernels::layer_norm_grad) cpu::Kernels::*backward;
};
constexpr Norm kLayerNorm = {"layer_norm",
                             "layer_norm backward",
                             true,
                             &cpu::Kernels::layer_norm,
                             &cpu::Kernels::layer_norm_grad};
constexpr Norm kRmsNorm = {
    "rms_norm", "rms_norm backward", false, &cpu::Kernels::rms_norm, &cpu::Kernels::rms_norm_grad};

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
                  norm.name + (" of " + cpu::shape(x)) + " with a weight of " +
                      (weight.defined() ? cpu::shape(weight) : "none"),
                  "weight and bias need one value for each of the input's last dimension");
}

const void* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr() : nullptr;
}

float* floats_or_null(const at::Tensor& x) {
  return x.defined() ? x.data_ptr<float>() : nullptr;
}

/// What is added to x, or to its gradient, or nothing.
void check_addend(const Norm& norm, const at::Tensor& x, const at::Tensor& plus) {
  TESSERA_REQUIRE(!plus.defined() || plus.sizes() == x.sizes(),
                  Shape,
                  norm.name + (" of " + cpu::shape(x)) + " plus " + cpu::shape(plus),
                  "give both one shape");
}

LayerNormOut forward(const Norm& norm,
                     const at::Tensor& x_NC,
                     const at::Tensor& weight_C,
                     const at::Tensor& bias_C,
                     double eps,
                     const at::Tensor& branch_NC) {
  check_channels(norm, x_NC, weight_C, bias_C);
  check_addend(norm, x_NC, branch_NC);
  const std::int64_t C = x_NC.size(-1), N = x_NC.numel() / C;
  const at::TensorOptions floats = x_NC.options().dtype(at::kFloat);
  LayerNormOut out{at::empty_like(x_NC, x_NC.options(), at::MemoryFormat::Contiguous),
                   norm.has_mean ? at::empty({N}, floats) : at::Tensor(),
                   at::empty({N}, floats),
                   x_NC};
  if (branch_NC.defined()) out.x_NC = at::empty_like(out.y_NC);
  if (x_NC.is_meta()) return out;
  const OpScope scope(norm.name, [&] {
    const double passes = branch_NC.defined() ? 4.0 : 2.0;
    return OpWork{.bytes = passes * static_cast<double>(x_NC.nbytes()), .shape = cpu::shape(x_NC)};
  });
  const at::Tensor branch =
      branch_NC.defined() ? branch_NC.to(x_NC.scalar_type()).contiguous() : at::Tensor();
  const at::Tensor x = x_NC.contiguous(), weight = cpu::plain_float(weight_C);
  const at::Tensor bias = bias_C.defined() ? cpu::plain_float(bias_C) : at::Tensor();
  const cpu::NormRows rows{.x = x.data_ptr(),
                           .weight = weight.data_ptr<float>(),
                           .bias = floats_or_null(bias),
                           .y = out.y_NC.data_ptr(),
                           .mean = floats_or_null(out.mean_N),
                           .rstd = out.rstd_N.data_ptr<float>(),
                           .channels = C,
                           .eps = eps,
                           .plus = data_or_null(branch),
                           .sum = branch.defined() ? out.x_NC.data_ptr() : nullptr};
  const auto kernel = (cpu::kernels().*norm.forward)[cpu::float_of(x)];
  cpu::parallel(N, rows_per_thread(C), [&](std::int64_t begin, std::int64_t end) {
    kernel(rows, begin, end);
  });
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
                    const at::Tensor& plus_NC) {
  check_channels(norm, x_NC, weight_C, {});
  check_addend(norm, x_NC, plus_NC);
  at::Tensor dx;
  if (weight_C.defined()) dx = at::empty_like(x_NC, x_NC.options(), at::MemoryFormat::Contiguous);
  if (x_NC.is_meta()) return dx;
  const OpScope scope(norm.backward_name, [&] {
    const double passes = 2.0 + (dx.defined() ? 1.0 : 0.0) + (plus_NC.defined() ? 1.0 : 0.0);
    return OpWork{.bytes = passes * static_cast<double>(x_NC.nbytes()), .shape = cpu::shape(x_NC)};
  });
  const std::int64_t C = x_NC.size(-1), N = x_NC.numel() / C;
  const at::Tensor dy = dy_NC.to(x_NC.scalar_type()).contiguous(), x = x_NC.contiguous();
  const at::Tensor plus =
      plus_NC.defined() ? plus_NC.to(x_NC.scalar_type()).contiguous() : at::Tensor();
  const at::Tensor weight = dx.defined() ? cpu::plain_float(weight_C) : at::Tensor();
  const cpu::NormGradRows rows{.dy = dy.data_ptr(),
                               .x = x.data_ptr(),
                               .mean = floats_or_null(mean_N),
                               .rstd = rstd_N.data_ptr<float>(),
                               .weight = floats_or_null(weight),
                               .dx = dx.defined() ? dx.data_ptr() : nullptr,
                               .channels = C,
                               .plus = data_or_null(plus)};
  const cpu::RowBlocks blocks{N};
  const at::Tensor partial = at::zeros({blocks.count(), 2, C}, rstd_N.options());
  float* sums = partial.data_ptr<float>();
  const auto kernel = (cpu::kernels().*norm.backward)[cpu::float_of(x)];
  cpu::parallel(blocks.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      float* dweight = dweight_C.defined() ? sums + block * 2 * C : nullptr;
      float* dbias = dbias_C.defined() ? sums + (block * 2 + 1) * C : nullptr;
      kernel(rows, dweight, dbias, blocks.begin(block), blocks.end(block));
    }
  });
  if (dweight_C.defined()) {
    float* to = cpu::destination(dweight_C, C, "dweight");
    cpu::fold_blocks(sums, blocks.count(), 2 * C, C, accumulate_weight, to);
  }
  if (dbias_C.defined()) {
    float* to = cpu::destination(dbias_C, C, "dbias");
    cpu::fold_blocks(sums + C, blocks.count(), 2 * C, C, accumulate_bias, to);
  }
  return dx;
}

}  // namespace

LayerNormOut layer_norm(const at::Tensor& x_NC,
                        const at::Tensor& weight_C,
                        const at::Tensor& bias_C,
                        double eps,
                        const at::Tensor& branch_NC) {
  return forward(kLayerNorm, x_NC, weight_C, bias_C, eps, branch_NC);
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
                               const at::Tensor& plus_NC) {
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
                  plus_NC);
}

RmsNormOut rms_norm(const at::Tensor& x_NC,
                    const at::Tensor& weight_C,
                    double eps,
                    const at::Tensor& branch_NC) {
  const LayerNormOut out = forward(kRmsNorm, x_NC, weight_C, {}, eps, branch_NC);
  return {out.y_NC, out.rstd_N, out.x_NC};
}

at::Tensor rms_norm_backward(const at::Tensor& dy_NC,
                             const at::Tensor& x_NC,
                             const at::Tensor& rstd_N,
                             const at::Tensor& weight_C,
                             const at::Tensor& dweight_C,
                             bool accumulate_weight,
                             const at::Tensor& plus_NC) {
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
                  plus_NC);
}

}  // namespace tessera::ops

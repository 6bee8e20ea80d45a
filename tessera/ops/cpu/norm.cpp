// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/norm.h"

#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/row_blocks.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

/// Minimum number of elements that justifies another thread.
constexpr std::int64_t kNormGrainElements = 8192;

std::int64_t rows_per_thread(std::int64_t channels) {
  return std::max<std::int64_t>(1, kNormGrainElements / std::max<std::int64_t>(1, channels));
}

const void* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr() : nullptr;
}

float* floats_or_null(const at::Tensor& x) {
  return x.defined() ? x.data_ptr<float>() : nullptr;
}

}  // namespace

void CpuBackend::norm(const NormArgs& args) const {
  const std::int64_t C = args.x_NC.size(-1), N = args.x_NC.numel() / C;
  if (args.key != nullptr) dropout(args.branch_NC, args.x_NC, *args.key, args.sum_NC);
  const bool adds = args.branch_NC.defined() && args.key == nullptr;
  const at::Tensor branch =
      adds ? args.branch_NC.to(args.x_NC.scalar_type()).contiguous() : at::Tensor();
  const at::Tensor x = args.key != nullptr ? args.sum_NC : args.x_NC.contiguous(),
                   weight = plain_float(args.weight_C);
  const at::Tensor bias = args.bias_C.defined() ? plain_float(args.bias_C) : at::Tensor();
  const NormRows rows{.x = x.data_ptr(),
                      .weight = weight.data_ptr<float>(),
                      .bias = floats_or_null(bias),
                      .y = args.y_NC.data_ptr(),
                      .mean = floats_or_null(args.mean_N),
                      .rstd = args.rstd_N.data_ptr<float>(),
                      .channels = C,
                      .eps = args.eps,
                      .plus = data_or_null(branch),
                      .sum = branch.defined() ? args.sum_NC.data_ptr() : nullptr};
  const auto& of_kind = args.mean_N.defined() ? kernels().layer_norm : kernels().rms_norm;
  const auto kernel = of_kind[float_of(x)];
  parallel(N, rows_per_thread(C), [&](std::int64_t begin, std::int64_t end) {
    kernel(rows, begin, end);
  });
}

void CpuBackend::norm_backward(const NormGradArgs& args) const {
  const std::int64_t C = args.x_NC.size(-1), N = args.x_NC.numel() / C;
  const at::ScalarType dtype = args.x_NC.scalar_type();
  const at::Tensor dy = args.dy_NC.to(dtype).contiguous(), x = args.x_NC.contiguous();
  const at::Tensor plus =
      args.plus_NC.defined() ? args.plus_NC.to(dtype).contiguous() : at::Tensor();
  const at::Tensor weight = args.dx_NC.defined() ? plain_float(args.weight_C) : at::Tensor();
  const NormGradRows rows{.dy = dy.data_ptr(),
                          .x = x.data_ptr(),
                          .mean = floats_or_null(args.mean_N),
                          .rstd = args.rstd_N.data_ptr<float>(),
                          .weight = floats_or_null(weight),
                          .dx = args.dx_NC.defined() ? args.dx_NC.data_ptr() : nullptr,
                          .channels = C,
                          .plus = data_or_null(plus)};
  const RowBlocks blocks{N};
  const at::Tensor partial = at::zeros({blocks.count(), 2, C}, args.rstd_N.options());
  float* sums = partial.data_ptr<float>();
  const auto& of_kind = args.mean_N.defined() ? kernels().layer_norm_grad : kernels().rms_norm_grad;
  const auto kernel = of_kind[float_of(x)];
  const bool of_weight = args.dweight_C.defined(), of_bias = args.dbias_C.defined();
  parallel(blocks.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      float* dweight = of_weight ? sums + block * 2 * C : nullptr;
      float* dbias = of_bias ? sums + (block * 2 + 1) * C : nullptr;
      kernel(rows, dweight, dbias, blocks.begin(block), blocks.end(block));
    }
  });
  if (of_weight) {
    auto* to = args.dweight_C.data_ptr<float>();
    reduce_blocks(sums, blocks.count(), 2 * C, C, args.accumulate_weight, to);
  }
  if (of_bias) {
    auto* to = args.dbias_C.data_ptr<float>();
    reduce_blocks(sums + C, blocks.count(), 2 * C, C, args.accumulate_bias, to);
  }
  if (args.key != nullptr) dropout(args.dx_NC, {}, *args.key, args.dbranch_NC);
}

}  // namespace tessera::ops::cpu

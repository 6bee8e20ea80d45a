// SPDX-License-Identifier: Apache-2.0
// Layer and root-mean-square normalization with fp32 statistics and fp32 sums. Legend: N rows, C
// channels.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/dropout.h"

namespace tessera::ops {

struct LayerNormOut {
  at::Tensor y_NC;    ///< x's dtype
  at::Tensor mean_N;  ///< fp32
  at::Tensor rstd_N;  ///< fp32
  at::Tensor x_NC;    ///< the normalized value: x, or x + dropout(branch)
};
/// y = (x - mean) * rstd * weight + bias; x, weight, bias in fp32, bf16 or fp16. With a `branch`,
/// of x's shape, normalizes x + dropout(branch), rounded to x's dtype: the bits of add_dropout(),
/// in the same pass on a GPU. With an active `key`, x and branch have the dims that dropout()
/// expects, [B, ..., C]. Works on meta.
LayerNormOut layer_norm(const at::Tensor& x_NC,
                        const at::Tensor& weight_C,
                        const at::Tensor& bias_C,
                        double eps,
                        const at::Tensor& branch_NC = {},
                        const DropoutKey& key = {});
/// The gradient of a branch, dropout(dx) by `key`, which the backward of a norm computes with dx.
struct BranchGrad {
  const DropoutKey* key = nullptr;
  at::Tensor dbranch;  ///< the result
};
/// Returns dx in x's dtype, for the normalized value; `plus_NC` is added to it before rounding.
/// dweight_C and dbias_C are fp32 destinations, written or added to; sums run in row order, in
/// blocks that do not depend on the number of threads. An undefined destination is skipped. Without
/// a weight, which the destinations do not need, dx is undefined. `branch`: nullptr: not needed;
/// its key is active, and x and dy have the dims that dropout() expects.
at::Tensor layer_norm_backward(const at::Tensor& dy_NC,
                               const at::Tensor& x_NC,
                               const at::Tensor& mean_N,
                               const at::Tensor& rstd_N,
                               const at::Tensor& weight_C,
                               const at::Tensor& dweight_C,
                               bool accumulate_weight,
                               const at::Tensor& dbias_C,
                               bool accumulate_bias,
                               const at::Tensor& plus_NC = {},
                               BranchGrad* branch = nullptr);

struct RmsNormOut {
  at::Tensor y_NC;    ///< x's dtype
  at::Tensor rstd_N;  ///< fp32
  at::Tensor x_NC;    ///< as above
};
/// y = x * rstd * weight, rstd = 1 / sqrt(mean of x^2 + eps), rounded once; dtypes as above. Works
/// on meta. Source: Zhang and Sennrich 2019, "Root mean square layer normalization".
RmsNormOut rms_norm(const at::Tensor& x_NC,
                    const at::Tensor& weight_C,
                    double eps,
                    const at::Tensor& branch_NC = {},
                    const DropoutKey& key = {});
/// The same as layer_norm_backward().
at::Tensor rms_norm_backward(const at::Tensor& dy_NC,
                             const at::Tensor& x_NC,
                             const at::Tensor& rstd_N,
                             const at::Tensor& weight_C,
                             const at::Tensor& dweight_C,
                             bool accumulate_weight,
                             const at::Tensor& plus_NC = {},
                             BranchGrad* branch = nullptr);

}  // namespace tessera::ops

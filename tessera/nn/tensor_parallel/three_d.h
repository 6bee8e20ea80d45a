// SPDX-License-Identifier: Apache-2.0
// Mode 3d: ranks form a cube of side q. The input of a layer is split by samples over two axes (i,
// then a) and by features over the third (b); its output is split by samples over i, then b, and by
// features over a. The next layer exchanges the roles of a and b, so that after a pair of layers
// the placement is the initial one. Every rank gathers its input along a and its part of the weight
// along i, multiplies once, and reduce-scatters the sum over b by samples. Source: Agarwal et al.
// 1995, "A three-dimensional approach to parallel matrix multiplication"; Bian et al. 2021,
// "Maximizing parallelism in distributed training for huge neural networks".
#pragma once

#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn::three_d {

// See grid.h.
at::Tensor multiply(const at::Tensor& x_BRI,
                    const at::Tensor& weight,
                    const ParamInfo& info,
                    at::ScalarType out,
                    StepContext& context);
at::Tensor gathered(const at::Tensor& dy_BRO, const ParamInfo& info, StepContext& context);
at::Tensor input_grad(const at::Tensor& gathered_BRO,
                      const at::Tensor& weight,
                      const ParamInfo& info,
                      StepContext& context);
/// scale * dy^T x for this rank's part, fp32, in the shape of the weight's matrix.
at::Tensor weight_grad(const at::Tensor& gathered_BRO,
                       const at::Tensor& x_BRI,
                       const ParamInfo& info,
                       float scale,
                       StepContext& context);

}  // namespace tessera::nn::three_d

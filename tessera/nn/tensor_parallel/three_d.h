// SPDX-License-Identifier: Apache-2.0
// Mode 3d: ranks form a cube of side q. The input of a layer lies with its samples over two axes
// (i, then a) and its features over the third (b); the output with its samples over i, then b, and
// its features over a: the next layer has a and b change places, so that a pair of them ends as it
// began. Every rank gathers its input along a and its part of the weight along i, multiplies once,
// and the sum over b is scattered over samples. Source: Agarwal et al. 1995, "A three-dimensional
// approach to parallel matrix multiplication"; Bian et al. 2021, "Maximizing parallelism in
// distributed training for huge neural networks".
//
// What moves: an input, a weight and an output forward, each q times a rank's part of it; an output
// gradient, a weight, an input gradient, an input and a weight gradient backward.
#pragma once

#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn::three_d {

// As grid.h has them.
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
/// scale * dy^T x of this rank's part, fp32, in the shape of the weight's matrix.
at::Tensor weight_grad(const at::Tensor& gathered_BRO,
                       const at::Tensor& x_BRI,
                       const ParamInfo& info,
                       float scale,
                       StepContext& context);

}  // namespace tessera::nn::three_d

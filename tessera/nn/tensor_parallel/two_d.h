// SPDX-License-Identifier: Apache-2.0
// Mode 2d: a matrix [rows, columns] lies on a q x q grid, its columns over the grid's rows (f) and
// its rows over the grid's columns (s): activations [samples, features], weights [inputs, outputs]
// (stored transposed) and tables [vocabulary, channels] alike. A product takes q steps; in each one
// block of a factor, or of both, is broadcast along an axis, and where the result's place is not
// the place of its terms these are reduced to it. Source: van de Geijn and Watts 1997, "SUMMA";
// Xu et al. 2021, "An efficient 2D method for training super-large deep learning models". With a
// depth every layer of the grid has samples of its own and all weights, whose gradients are summed
// over the depth. Source: Wang et al. 2021, "2.5-dimensional distributed model training".
//
// What moves in a step, for N rows of samples on a rank: blocks of the input, of the weight and of
// the output, two of the three in each of the three products.
#pragma once

#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn::two_d {

// As grid.h has them.
at::Tensor multiply(const at::Tensor& x_BRI,
                    const at::Tensor& weight,
                    const ParamInfo& info,
                    at::ScalarType out,
                    StepContext& context);
at::Tensor input_grad(const at::Tensor& dy_BRO,
                      const at::Tensor& weight,
                      const ParamInfo& info,
                      StepContext& context);
/// scale * dy^T x of this rank's block, fp32, in the shape of the weight's matrix.
at::Tensor weight_grad(const at::Tensor& dy_BRO,
                       const at::Tensor& x_BRI,
                       const ParamInfo& info,
                       float scale,
                       StepContext& context);

}  // namespace tessera::nn::two_d

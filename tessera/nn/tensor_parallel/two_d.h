// SPDX-License-Identifier: Apache-2.0
// Mode 2d: a matrix [rows, columns] is placed on a q x q grid, its columns over the grid's rows (f)
// and its rows over the grid's columns (s). This holds for activations [samples, features], weights
// [inputs, outputs] (stored transposed) and tables [vocabulary, channels]. A product takes q steps;
// in each step one block of one factor, or of both, is broadcast along an axis, and if the result
// belongs to another rank than its terms, they are reduced to that rank. Source: van de Geijn and
// Watts 1997, "SUMMA"; Xu et al. 2021, "An efficient 2D method for training super-large deep
// learning models". With a depth (2.5d) every layer of the grid has its own samples and all
// weights; the gradients of the weights are summed over the depth. Source: Wang et al. 2021,
// "2.5-dimensional distributed model training".
#pragma once

#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn::two_d {

// See grid.h.
at::Tensor multiply(const at::Tensor& x_BRI,
                    const at::Tensor& weight,
                    const ParamInfo& info,
                    at::ScalarType out,
                    StepContext& context);
at::Tensor input_grad(const at::Tensor& dy_BRO,
                      const at::Tensor& weight,
                      const ParamInfo& info,
                      StepContext& context);
/// scale * dy^T x for this rank's block, fp32, in the shape of the weight's matrix.
at::Tensor weight_grad(const at::Tensor& dy_BRO,
                       const at::Tensor& x_BRI,
                       const ParamInfo& info,
                       float scale,
                       StepContext& context);

}  // namespace tessera::nn::two_d

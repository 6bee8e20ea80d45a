// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/tensor_parallel/three_d.h"

#include "tessera/base/error.h"
#include "tessera/nn/autograd.h"
#include "tessera/ops/linear.h"

namespace tessera::nn::three_d {
namespace {

using namespace detail;
using grid::Spread;

/// The placement of a layer's input and of its output.
struct Way {
  Spread in, out;
};
Way way(const ParamInfo& info) {
  const Spread stream = grid::stream(TensorMode::ThreeD), inner = grid::inner(TensorMode::ThreeD);
  return info.axes.back() == LogicalAxis::Embed ? Way{stream, inner} : Way{inner, stream};
}

/// Gathers the samples of all ranks along the minor axis.
at::Tensor gather_samples(const at::Tensor& x_BRC,
                          const Spread& spread,
                          StepContext& context,
                          const char* what) {
  TESSERA_ASSERT(context.batch != nullptr);
  return grid::gather(x_BRC,
                      0,
                      grid::minor_counts(context.batch->size(), spread, *context.tensor),
                      spread.minor,
                      context,
                      what);
}

/// This rank's samples of the sum over the minor axis.
at::Tensor scatter_samples(const at::Tensor& x_NC,
                           std::int64_t rows,
                           const Spread& spread,
                           StepContext& context,
                           const char* what) {
  TESSERA_ASSERT(context.batch != nullptr);
  const auto counts = grid::minor_counts(context.batch->size(), spread, *context.tensor);
  const std::int64_t samples =
      grid::major_samples(context.batch->size(), spread, *context.tensor).count;
  return grid::scatter(
      x_NC.view({samples, rows, x_NC.size(1)}), 0, counts, spread.minor, context, what);
}

at::Tensor flat(const at::Tensor& x_BRC) {
  return x_BRC.contiguous().view({x_BRC.size(0) * x_BRC.size(1), x_BRC.size(2)});
}

}  // namespace

at::Tensor multiply(const at::Tensor& x_BRI,
                    const at::Tensor& weight,
                    const ParamInfo& info,
                    at::ScalarType out,
                    StepContext& context) {
  const Way lies = way(info);
  const at::Tensor x = flat(gather_samples(x_BRI, lies.in, context, "inputs"));
  const at::Tensor w = grid::whole_over_major(matrix(weight), info, context, "the weight");
  const at::Tensor y = x.size(0) == 0 ? at::empty({0, w.size(0)}, x.options().dtype(out))
                                      : ops::linear(x, w, {}, out);
  return scatter_samples(y, x_BRI.size(1), lies.out, context, "sums of the output");
}

at::Tensor gathered(const at::Tensor& dy_BRO, const ParamInfo& info, StepContext& context) {
  return gather_samples(dy_BRO, way(info).out, context, "gradients of the output");
}

at::Tensor input_grad(const at::Tensor& gathered_BRO,
                      const at::Tensor& weight,
                      const ParamInfo& info,
                      StepContext& context) {
  const at::Tensor dy = flat(gathered_BRO);
  const at::Tensor w = grid::whole_over_major(matrix(weight), info, context, "the weight");
  const at::Tensor dx =
      dy.size(0) == 0 ? at::empty({0, w.size(1)}, dy.options()) : ops::linear_input_grad(dy, w);
  return scatter_samples(dx, gathered_BRO.size(1), way(info).in, context, "gradients of the input");
}

at::Tensor weight_grad(const at::Tensor& gathered_BRO,
                       const at::Tensor& x_BRI,
                       const ParamInfo& info,
                       float scale,
                       StepContext& context) {
  const at::Tensor dy = flat(gathered_BRO),
                   x = flat(gather_samples(x_BRI, way(info).in, context, "inputs"));
  const at::Tensor dw = at::zeros({dy.size(1), x.size(1)}, x.options().dtype(at::kFloat));
  if (x.size(0) > 0) ops::linear_weight_grad(dy, x, dw, /*accumulate=*/false, scale);
  return grid::sum_over_major(dw, info, context, "gradients of the weight");
}

}  // namespace tessera::nn::three_d

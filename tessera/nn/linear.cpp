// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/layer_form.h"
#include "tessera/nn/tensor_parallel/grid.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/vocab_head.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/int8_rows.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct LinearNode : torch::autograd::Function<LinearNode> {
  struct Use {
    const Param* weight;
    const Param* bias;
    StepContext* context;
    Again again;  // recomputes x; empty: x is saved
    std::vector<std::int64_t> sizes = {};
    at::ScalarType dtype = {};
  };
  // Weight and bias are inputs, so that autograd reaches this node through them. Only defined
  // tensors have edges: the third one is the bias, if there is one.
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            std::optional<at::ScalarType> out_dtype,
                            Use use) {
    use.sizes = x.sizes().vec();
    use.dtype = x.scalar_type();
    // Only the weight's gradient needs x.
    const bool saves = weight.requires_grad() && !use.again;
    save(node, {weight, saves ? x : at::Tensor()});
    keep(node, std::move(use));
    const at::Tensor y =
        ops::linear(rows(x), matrix(weight), bias ? bias->view({-1}) : at::Tensor(), out_dtype);
    auto sizes = x.sizes().vec();
    sizes.back() = y.size(1);
    return y.view(sizes);
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor& weight = saved[0];
    const Use& use = kept<Use>(node);
    const at::Tensor dy = rows(grads[0]).to(use.dtype);
    at::Tensor dx;
    if (node->needs_input_grad(0)) {
      dx = ops::linear_input_grad(dy, matrix(weight)).view(use.sizes);
    }
    if (node->needs_input_grad(1)) {
      const at::Tensor x = use.again ? use.again() : saved[1];
      weight_gradient(*use.context,
                      [dy, x, w = use.weight] { write_weight(dy, rows(x), w->grad()); });
    }
    if (use.bias != nullptr && node->needs_input_grad(2)) {
      weight_gradient(*use.context, [dy, b = use.bias] { write_bias(dy, b->grad()); });
    }
    return {dx, {}, {}, {}, {}};
  }

  static void write_weight(const at::Tensor& dy, const at::Tensor& x, GradSink& sink) {
    ops::linear_weight_grad(dy, x, matrix(sink.out()), sink.accumulate());
    sink.written();
  }
  static void write_bias(const at::Tensor& dy, GradSink& sink) {
    ops::linear_bias_grad(dy, sink.out().view({-1}), sink.accumulate());
    sink.written();
  }
};

/// A linear layer with an 8-bit weight, which is read-only and not split over ranks.
at::Tensor int8_linear(const at::Tensor& x,
                       const Param& weight,
                       const Param* bias,
                       std::optional<at::ScalarType> out_dtype) {
  return ops::linear_int8(x,
                          {matrix(weight.tensor()), weight.scales()},
                          bias ? bias->tensor().view({-1}) : at::Tensor(),
                          out_dtype);
}

Again again_of(const at::Tensor& x) {
  Again again = activation_again(x);
  return again ? again : norm_again(x);
}

/// The product with this rank's part of the weight. `again` recomputes x; empty: x is saved.
at::Tensor local_linear(const at::Tensor& x,
                        const Param& weight,
                        const Param* bias,
                        std::optional<at::ScalarType> out_dtype,
                        StepContext& context,
                        Again again = {}) {
  return detail::apply<LinearNode>(x,
                                   weight.tensor(),
                                   bias ? std::optional<at::Tensor>(bias->tensor()) : std::nullopt,
                                   out_dtype,
                                   LinearNode::Use{&weight, bias, &context, std::move(again)});
}

/// True if the ranks of a grid hold the weight in parts. A weight that all of them hold whole is
/// multiplied by the result of gather_flow(), without communication.
bool is_on_grid(const Param& weight, const StepContext& context) {
  return context.on_grid() && weight.info().cut();
}

}  // namespace

at::Tensor linear(const at::Tensor& x,
                  const Param& weight,
                  const Param* bias,
                  StepContext& context) {
  const LayerForm* const form = form_of(weight);
  return form != nullptr ? form->linear(x, weight, bias, context)
                         : plain_linear(x, weight, bias, context);
}

at::Tensor plain_linear(const at::Tensor& x,
                        const Param& weight,
                        const Param* bias,
                        StepContext& context) {
  if (weight.scales().defined()) return int8_linear(x, weight, bias, std::nullopt);
  if (is_on_grid(weight, context)) return grid::linear(x, weight, bias, std::nullopt, context);
  switch (one_d::cut_of(weight.info())) {
    case one_d::Cut::None:
      break;
    case one_d::Cut::Outputs:
      return local_linear(one_d::enter(x, context),
                          weight,
                          bias,
                          std::nullopt,
                          context,
                          context.cuts_tokens() ? Again() : again_of(x));
    case one_d::Cut::Inputs: {
      const at::Tensor y = one_d::leave(
          local_linear(x, weight, nullptr, std::nullopt, context, again_of(x)), context);
      return bias == nullptr ? y : one_d::add_bias(y, *bias, context);
    }
  }
  return local_linear(x, weight, bias, std::nullopt, context, again_of(x));
}

at::Tensor vocab_logits(const at::Tensor& x_BTC, const Param& weight_VC, StepContext& context) {
  return vocab_logits(x_BTC, weight_VC, nullptr, context);
}

at::Tensor vocab_logits(const at::Tensor& x_BTC,
                        const Param& weight_VC,
                        const Param* bias_V,
                        StepContext& context,
                        double softcap) {
  if (softcap != 0.0) {
    TESSERA_REQUIRE(!is_on_grid(weight_VC, context),
                    Unsupported,
                    fmt::format("block {} has a soft cap of the logits, which ranks of a grid do "
                                "not share",
                                context.block_name),
                    "set parallel.tensor.mode to 1d");
    const at::Tensor logits = vocab_logits(x_BTC, weight_VC, bias_V, context);
    ops::soft_cap_(logits, softcap, /*want_slope=*/false);
    return logits;
  }
  if (weight_VC.scales().defined()) return int8_linear(x_BTC, weight_VC, bias_V, at::kFloat);
  if (is_on_grid(weight_VC, context)) {
    TESSERA_REQUIRE(bias_V == nullptr,
                    Unsupported,
                    fmt::format("block {} has a bias of the vocabulary, which ranks of a grid do "
                                "not share",
                                context.block_name),
                    "set parallel.tensor.mode to 1d");
    return grid::all_logits(
        grid::linear(x_BTC, weight_VC, nullptr, at::kFloat, context), weight_VC, context);
  }
  if (one_d::cut_of(weight_VC.info()) == one_d::Cut::None)
    return local_linear(x_BTC, weight_VC, bias_V, at::kFloat, context);
  const at::Tensor shares =
      local_linear(one_d::enter(x_BTC, context), weight_VC, bias_V, at::kFloat, context);
  return one_d::gather_vocab(shares, weight_VC, context);
}

}  // namespace tessera::nn

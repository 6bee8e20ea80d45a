// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/fake_quantization.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/layer_form.h"
#include "tessera/nn/local_layers.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/tiled_form.h"
#include "tessera/nn/vocab_head.h"
#include "tessera/nn/weight_form.h"
#include "tessera/ops/cross_entropy.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct LinearNode : torch::autograd::Function<LinearNode> {
  struct Use {
    const Param* weight;
    const TiledForm* tiles;  // nullptr: the weight is whole
    const Param* bias;
    StepContext* context;
    Again again;  // recomputes x; empty: x is saved
    std::vector<std::int64_t> sizes = {};
    at::ScalarType dtype = {};

    // The operands, rounded where the weight's form says so.
    [[nodiscard]] at::Tensor input(const at::Tensor& x_NI) const {
      const FakeQuantizedForm* const fake = fake_form_of(*weight, *context);
      return fake != nullptr ? fake->rounded_input(x_NI) : x_NI;
    }
    [[nodiscard]] at::Tensor matrix_of(const at::Tensor& values) const {
      const FakeQuantizedForm* const fake = fake_form_of(*weight, *context);
      return fake != nullptr ? fake->rounded_weight(matrix(values)) : matrix(values);
    }
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
    const TiledForm* const tiles = use.tiles;
    save(node, {weight, saves ? x : at::Tensor()});
    const at::Tensor bias_O = bias ? bias->view({-1}) : at::Tensor();
    const at::Tensor y =
        tiles != nullptr
            ? tiles->product(rows(x), bias_O, out_dtype.value_or(x.scalar_type()))
            : ops::linear(use.input(rows(x)), use.matrix_of(weight), bias_O, out_dtype);
    keep(node, std::move(use));
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
      dx = (use.tiles != nullptr ? use.tiles->input_grad(dy)
                                 : ops::linear_input_grad(dy, use.matrix_of(weight)))
               .view(use.sizes);
    }
    if (node->needs_input_grad(1)) {
      const at::Tensor x = use.again ? use.again() : saved[1];
      if (use.tiles != nullptr) {
        use.tiles->weight_grad(dy, rows(x), 1.0F, *use.context);
      } else {
        weight_gradient(*use.context, [dy, x = use.input(rows(x)), w = use.weight] {
          write_weight(dy, x, w->grad());
        });
      }
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

class WholeForm final : public WeightForm {
 public:
  at::Tensor linear(const at::Tensor& x,
                    const Param& weight,
                    const Param* bias,
                    StepContext& context) const override {
    return local_linear(x, weight, bias, std::nullopt, context, again_of(x));
  }
  at::Tensor logits(const at::Tensor& x_BTC,
                    const Param& weight_VC,
                    const Param* bias_V,
                    StepContext& context) const override {
    return local_linear(x_BTC, weight_VC, bias_V, at::kFloat, context);
  }
  at::Tensor embedding(const at::Tensor& ids_BT,
                       const Param& table,
                       StepContext& context) const override {
    // Every rank has this table and looks up its own tokens.
    return local_embedding(
        context.cuts_tokens() ? one_d::own_tokens(ids_BT, context) : ids_BT, table, context);
  }
};

}  // namespace

const WeightForm& whole_form() {
  static const WholeForm form;
  return form;
}

at::Tensor detail::local_linear(const at::Tensor& x,
                                const Param& weight,
                                const Param* bias,
                                std::optional<at::ScalarType> out_dtype,
                                StepContext& context,
                                Again again) {
  if (weight.scales().defined()) return int8_linear(x, weight, bias, out_dtype);
  return detail::apply<LinearNode>(
      x,
      edge_of(weight),
      bias ? std::optional<at::Tensor>(bias->tensor()) : std::nullopt,
      out_dtype,
      LinearNode::Use{&weight, tiled_form_of(weight), bias, &context, std::move(again)});
}

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
  return weight_form(weight, context).linear(x, weight, bias, context);
}

at::Tensor vocab_logits(const at::Tensor& x_BTC, const Param& weight_VC, StepContext& context) {
  return vocab_logits(x_BTC, weight_VC, nullptr, context);
}

at::Tensor vocab_logits(const at::Tensor& x_BTC,
                        const Param& weight_VC,
                        const Param* bias_V,
                        StepContext& context,
                        double softcap) {
  const WeightForm& form = weight_form(weight_VC, context);
  if (softcap == 0.0) return form.logits(x_BTC, weight_VC, bias_V, context);
  const at::Tensor logits = form.logits(x_BTC, weight_VC, bias_V, context);
  ops::soft_cap_(logits, softcap, /*want_slope=*/false);
  return logits;
}

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// The weight forms of mode 1d (one_d.h).
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/local_layers.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/tensor_parallel/own_rows.h"
#include "tessera/nn/weight_form.h"
#include "tessera/ops/embedding.h"

namespace tessera::nn {
namespace {

using namespace detail;

/// Looks up rows [first, last) of a table; tokens of other rows give zero here.
struct OwnRowsNode : torch::autograd::Function<OwnRowsNode> {
  struct Use {
    const Param* table;
    StepContext* context;
    OwnRows own;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& ids,
                            const at::Tensor& table,
                            Use use) {
    auto sizes = ids.sizes().vec();
    sizes.push_back(table.size(1));
    use.own = own_rows(ids.reshape({-1}).contiguous(), use.table->info());
    const at::Tensor rows = use.table->scales().defined()
                                ? int8_embedding(use.own.rows_N, *use.table)
                                : ops::embedding(table, use.own.rows_N);
    const at::Tensor out = rows.masked_fill_(use.own.elsewhere_N.unsqueeze(1), 0).view(sizes);
    keep(node, std::move(use));
    return out;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    if (!node->needs_input_grad(1)) return {{}, {}, {}};
    const Use& use = kept<Use>(node);
    const auto [dy, ids] = gradients_of(use.own, rows(grads[0]));
    weight_gradient(*use.context, [dy = dy, ids = ids, table = use.table] {
      write_rows(dy, ids, table->grad());
    });
    return {{}, {}, {}};
  }
};

class SplitOutputsForm final : public WeightForm {
 public:
  at::Tensor linear(const at::Tensor& x,
                    const Param& weight,
                    const Param* bias,
                    StepContext& context) const override {
    return local_linear(one_d::enter(x, context),
                        weight,
                        bias,
                        std::nullopt,
                        context,
                        context.cuts_tokens() ? Again() : again_of(x));
  }
  at::Tensor logits(const at::Tensor& x_BTC,
                    const Param& weight_VC,
                    const Param* bias_V,
                    StepContext& context) const override {
    return one_d::gather_vocab(
        local_linear(one_d::enter(x_BTC, context), weight_VC, bias_V, at::kFloat, context),
        weight_VC,
        context);
  }
  at::Tensor embedding(const at::Tensor& ids_BT,
                       const Param& table,
                       StepContext& context) const override {
    return one_d::leave(
        detail::apply<OwnRowsNode>(ids_BT, table.tensor(), OwnRowsNode::Use{&table, &context, {}}),
        context);
  }
};

class SplitInputsForm final : public WeightForm {
 public:
  at::Tensor linear(const at::Tensor& x,
                    const Param& weight,
                    const Param* bias,
                    StepContext& context) const override {
    const at::Tensor y =
        one_d::leave(local_linear(x, weight, nullptr, std::nullopt, context, again_of(x)), context);
    return bias == nullptr ? y : detail::add_bias(y, *bias, context);
  }
  at::Tensor logits(const at::Tensor& /*x_BTC*/,
                    const Param& weight_VC,
                    const Param* /*bias_V*/,
                    StepContext& /*context*/) const override {
    refuse(weight_VC, "an output head");
  }
  at::Tensor embedding(const at::Tensor& /*ids_BT*/,
                       const Param& table,
                       StepContext& /*context*/) const override {
    refuse(table, "a table");
  }

 private:
  [[noreturn]] static void refuse(const Param& weight, const char* use) {
    throw Error(Error::Kind::Unsupported,
                fmt::format("{} is {} whose channels are split over tensor-parallel ranks",
                            weight.info().name,
                            use),
                "give its last dim an axis that is not split, such as LogicalAxis::Embed");
  }
};

}  // namespace

const WeightForm& split_outputs_form() {
  static const SplitOutputsForm form;
  return form;
}

const WeightForm& split_inputs_form() {
  static const SplitInputsForm form;
  return form;
}

}  // namespace tessera::nn

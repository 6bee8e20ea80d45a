// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/embedding.h"

#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/layer_form.h"
#include "tessera/nn/tensor_parallel/grid.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/tensor_parallel/own_rows.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/tensor/row_sum.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct EmbeddingNode : torch::autograd::Function<EmbeddingNode> {
  struct Use {
    const Param* table;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& ids,
                            const at::Tensor& table,
                            Use use) {
    const at::Tensor flat = ids.reshape({-1}).contiguous();
    save(node, {flat});
    keep(node, use);
    auto sizes = ids.sizes().vec();
    sizes.push_back(table.size(1));
    return ops::embedding(table, flat).view(sizes);
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    if (!node->needs_input_grad(1)) return {{}, {}, {}};
    const Use use = kept<Use>(node);
    const at::Tensor ids = node->get_saved_variables()[0];
    weight_gradient(*use.context, [dy = rows(grads[0]), ids, table = use.table] {
      write_rows(dy, ids, table->grad());
    });
    return {{}, {}, {}};
  }
};

/// The dtype of products with 8-bit weights.
constexpr at::ScalarType kAroundInt8 = at::kBFloat16;

/// Looks up rows [first, last) of a table; tokens of other rows give zero here.
struct RowsNode : torch::autograd::Function<RowsNode> {
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
    const at::Tensor out = ops::embedding(table, use.own.rows_N)
                               .masked_fill_(use.own.elsewhere_N.unsqueeze(1), 0)
                               .view(sizes);
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

}  // namespace

void detail::write_rows(const at::Tensor& dy_NC, const at::Tensor& rows_N, GradSink& sink) {
  if (RowSum* const rows = sink.rows()) {
    const at::Tensor places_N = rows->places(rows_N);
    ops::embedding_grad(dy_NC, places_N, rows->values(), /*accumulate=*/true);
  } else {
    ops::embedding_grad(dy_NC, rows_N, sink.out(), sink.accumulate());
  }
  sink.written();
}

at::Tensor embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context) {
  const LayerForm* const form = form_of(table);
  return form != nullptr ? form->embedding(ids_BT, table, context)
                         : plain_embedding(ids_BT, table, context);
}

at::Tensor plain_embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context) {
  if (table.scales().defined()) {
    auto sizes = ids_BT.sizes().vec();
    sizes.push_back(table.tensor().size(1));
    return ops::embedding_int8({table.tensor(), table.scales()}, ids_BT.reshape({-1}), kAroundInt8)
        .view(sizes);
  }
  if (context.on_grid()) return grid::embedding(ids_BT, table, context);
  if (one_d::cut_of(table.info()) != one_d::Cut::None) {
    return one_d::leave(
        detail::apply<RowsNode>(ids_BT, table.tensor(), RowsNode::Use{&table, &context, {}}),
        context);
  }
  // Every rank has this table and looks up its own tokens.
  if (context.cuts_tokens()) {
    return detail::apply<EmbeddingNode>(
        one_d::own_tokens(ids_BT, context), table.tensor(), EmbeddingNode::Use{&table, &context});
  }
  return detail::apply<EmbeddingNode>(ids_BT, table.tensor(), EmbeddingNode::Use{&table, &context});
}

}  // namespace tessera::nn

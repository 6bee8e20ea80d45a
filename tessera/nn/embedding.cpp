// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/embedding.h"

#include "tessera/nn/functional.h"
#include "tessera/nn/layer_form.h"
#include "tessera/nn/local_layers.h"
#include "tessera/nn/tiled_form.h"
#include "tessera/nn/weight_form.h"
#include "tessera/tensor/row_sum.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct EmbeddingNode : torch::autograd::Function<EmbeddingNode> {
  struct Use {
    const Param* table;
    const TiledForm* tiles;  // nullptr: the table is whole
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
    return (use.tiles != nullptr ? use.tiles->rows(flat) : ops::embedding(table, flat)).view(sizes);
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    if (!node->needs_input_grad(1)) return {{}, {}, {}};
    const Use use = kept<Use>(node);
    const at::Tensor ids = node->get_saved_variables()[0];
    weight_gradient(*use.context, [dy = rows(grads[0]), ids, use] {
      if (use.tiles != nullptr) {
        use.tiles->rows_grad(dy, ids);
      } else {
        write_rows(dy, ids, use.table->grad());
      }
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
  return weight_form(table, context).embedding(ids_BT, table, context);
}

at::Tensor detail::local_embedding(const at::Tensor& ids,
                                   const Param& table,
                                   StepContext& context) {
  if (table.scales().defined()) return int8_embedding(ids, table);
  return detail::apply<EmbeddingNode>(
      ids, edge_of(table), EmbeddingNode::Use{&table, tiled_form_of(table), &context});
}

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/embedding.h"

#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"

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
    node->save_for_backward({flat});
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
      GradSink& sink = table->grad();
      ops::embedding_grad(dy, ids, sink.out(), sink.accumulate());
      sink.written_rows(ids);
    });
    return {{}, {}, {}};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context) {
  return EmbeddingNode::apply(ids_BT, table.tensor(), EmbeddingNode::Use{&table, &context});
}

}  // namespace tessera::nn

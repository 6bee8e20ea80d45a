// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/embedding.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/one_d.h"

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

/// Rows [first, last) of a table: tokens of other rows are zero here.
struct RowsNode : torch::autograd::Function<RowsNode> {
  struct Use {
    const Param* table;
    StepContext* context;
    at::Tensor elsewhere_N1;  ///< true where a token's row is another rank's
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& ids,
                            const at::Tensor& table,
                            Use use) {
    auto sizes = ids.sizes().vec();
    sizes.push_back(table.size(1));
    if (ids.is_meta()) return at::empty(sizes, table.options());
    const mesh::Box box = use.table->info().held();
    const std::int64_t first = box.begin.front(), last = box.end.front();
    const at::Tensor flat = ids.reshape({-1}).contiguous();
    check_ids(flat, use.table->info().shape.front());
    const at::Tensor elsewhere = flat.lt(first).logical_or_(flat.ge(last));
    const at::Tensor rows = (flat - first).masked_fill_(elsewhere, 0);
    use.elsewhere_N1 = elsewhere.unsqueeze(1);
    node->save_for_backward({rows});
    const at::Tensor out =
        ops::embedding(table, rows).masked_fill_(use.elsewhere_N1, 0).view(sizes);
    keep(node, std::move(use));
    return out;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    if (!node->needs_input_grad(1)) return {{}, {}, {}};
    const Use& use = kept<Use>(node);
    const at::Tensor here = use.elsewhere_N1.squeeze(1).logical_not().nonzero().squeeze(1);
    const at::Tensor ids = node->get_saved_variables()[0].index_select(0, here);
    const at::Tensor dy = rows(grads[0]).index_select(0, here);
    weight_gradient(*use.context, [dy, ids, table = use.table] {
      GradSink& sink = table->grad();
      ops::embedding_grad(dy, ids, sink.out(), sink.accumulate());
      sink.written_rows(ids);
    });
    return {{}, {}, {}};
  }

  static void check_ids(const at::Tensor& ids, std::int64_t V) {
    if (ids.numel() == 0) return;
    const auto [least, most] = at::aminmax(ids);
    const std::int64_t low = least.item<std::int64_t>(), high = most.item<std::int64_t>();
    TESSERA_REQUIRE(
        low >= 0 && high < V,
        Data,
        fmt::format("token id {} is outside the table of {} rows", low < 0 ? low : high, V),
        "use the tokenizer that the model's vocabulary belongs to");
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context) {
  if (one_d::cut_of(table.info()) != one_d::Cut::None) {
    return one_d::leave(
        RowsNode::apply(ids_BT, table.tensor(), RowsNode::Use{&table, &context, {}}), context);
  }
  // A table that every rank has: for its own tokens.
  if (context.cuts_tokens()) {
    return EmbeddingNode::apply(
        one_d::own_tokens(ids_BT, context), table.tensor(), EmbeddingNode::Use{&table, &context});
  }
  return EmbeddingNode::apply(ids_BT, table.tensor(), EmbeddingNode::Use{&table, &context});
}

}  // namespace tessera::nn

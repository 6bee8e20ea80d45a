// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/tiled_form.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/local_layers.h"
#include "tessera/ops/embedding.h"
#include "tessera/ops/linear.h"
#include "tessera/tensor/upload.h"

namespace tessera::nn {
namespace {

using namespace detail;

/// Releases a tile also if the work with it throws.
class TileInUse {
 public:
  TileInUse(const std::function<void(std::size_t)>& release, std::size_t tile)
      : release_(release), tile_(tile) {}
  ~TileInUse() {
    if (release_) release_(tile_);
  }
  TileInUse(const TileInUse&) = delete;
  TileInUse& operator=(const TileInUse&) = delete;

 private:
  const std::function<void(std::size_t)>& release_;
  std::size_t tile_;
};

at::Tensor part_of(const at::Tensor& bias_O, const WeightTile& tile) {
  return bias_O.defined() ? bias_O.reshape({-1}).narrow(0, tile.begin, tile.rows) : bias_O;
}

struct TiledLinearNode : torch::autograd::Function<TiledLinearNode> {
  struct Use {
    const TiledForm* form;
    const Param* bias;
    StepContext* context;
    Again again;  // recomputes x; empty: x is saved
    std::vector<std::int64_t> sizes = {};
    at::ScalarType dtype = {};
  };
  // The tensor of the first tile is an input, so that autograd reaches this node through it.
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& edge,
                            const std::optional<at::Tensor>& bias,
                            std::optional<at::ScalarType> out_dtype,
                            Use use) {
    use.sizes = x.sizes().vec();
    use.dtype = x.scalar_type();
    const bool saves = edge.requires_grad() && !use.again;
    const TiledForm& form = *use.form;
    save(node, {saves ? x : at::Tensor()});
    keep(node, std::move(use));
    const at::Tensor y =
        form.product(rows(x), bias ? *bias : at::Tensor(), out_dtype.value_or(x.scalar_type()));
    auto sizes = x.sizes().vec();
    sizes.back() = y.size(1);
    return y.view(sizes);
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const Use& use = kept<Use>(node);
    const at::Tensor dy = rows(grads[0]).to(use.dtype);
    at::Tensor dx;
    if (node->needs_input_grad(0)) dx = use.form->input_grad(dy).view(use.sizes);
    if (node->needs_input_grad(1)) {
      const at::Tensor x = use.again ? use.again() : node->get_saved_variables()[0];
      use.form->weight_grad(dy, rows(x), 1.0F, *use.context);
    }
    if (use.bias != nullptr && node->needs_input_grad(2)) {
      weight_gradient(*use.context, [dy, b = use.bias] {
        GradSink& sink = b->grad();
        ops::linear_bias_grad(dy, sink.out().view({-1}), sink.accumulate());
        sink.written();
      });
    }
    return {dx, {}, {}, {}, {}};
  }
};

/// The tokens whose rows are in a tile: their places among all tokens. The host finds them, because
/// it has to know their number.
at::Tensor tokens_in(const at::Tensor& ids_N, const WeightTile& tile) {
  const at::Tensor ids = host_values(ids_N);
  const at::Tensor inside = ids.ge(tile.begin).logical_and_(ids.lt(tile.begin + tile.rows));
  return on_device(at::nonzero(inside).view({-1}), ids_N.device());
}

struct TiledEmbeddingNode : torch::autograd::Function<TiledEmbeddingNode> {
  struct Use {
    const TiledForm* form;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& ids,
                            const at::Tensor& edge,
                            Use use) {
    const at::Tensor flat_N = ids.reshape({-1}).contiguous();
    save(node, {flat_N});
    keep(node, use);
    const at::Tensor out_NC = at::empty({flat_N.numel(), edge.size(-1)}, edge.options());
    use.form->each_tile([&](const WeightTile& tile, const at::Tensor& values) {
      if (out_NC.is_meta()) return;
      const at::Tensor tokens = tokens_in(flat_N, tile);
      if (tokens.numel() == 0) return;
      const at::Tensor ids_in_tile = flat_N.index_select(0, tokens).sub_(tile.begin);
      out_NC.index_copy_(0, tokens, ops::embedding(values, ids_in_tile));
    });
    auto sizes = ids.sizes().vec();
    sizes.push_back(edge.size(-1));
    return out_NC.view(sizes);
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    if (!node->needs_input_grad(1)) return {{}, {}, {}};
    const Use use = kept<Use>(node);
    const at::Tensor ids_N = node->get_saved_variables()[0];
    weight_gradient(*use.context, [dy_NC = rows(grads[0]), ids_N, form = use.form] {
      for (const WeightTile& tile : form->tiles()) {
        if (ids_N.is_meta()) {
          tile.param->grad().written();
          continue;
        }
        const at::Tensor tokens = tokens_in(ids_N, tile);
        write_rows(dy_NC.index_select(0, tokens),
                   ids_N.index_select(0, tokens).sub_(tile.begin),
                   tile.param->grad());
      }
    });
    return {{}, {}, {}};
  }
};

}  // namespace

const at::Tensor& edge_of(const Param& weight) {
  const TiledForm* const form = tiled_form_of(weight);
  return form != nullptr ? form->tiles().front().param->tensor() : weight.tensor();
}

void TiledForm::each_tile(
    const std::function<void(const WeightTile& tile, const at::Tensor& values)>& work) const {
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    if (fetch_) fetch_(t);
    const TileInUse in_use(release_, t);
    work(tiles_[t], matrix(tiles_[t].param->tensor().detach()));
  }
}

at::Tensor TiledForm::linear(const at::Tensor& x,
                             const Param& weight,
                             const Param* bias,
                             StepContext& context) const {
  return plain_linear(x, weight, bias, context);
}

at::Tensor TiledForm::embedding(const at::Tensor& ids_BT,
                                const Param& table,
                                StepContext& context) const {
  return plain_embedding(ids_BT, table, context);
}

at::Tensor TiledForm::product(const at::Tensor& x_NI,
                              const at::Tensor& bias_O,
                              at::ScalarType out_dtype) const {
  const std::int64_t outputs = tiles_.back().begin + tiles_.back().rows;
  const at::Tensor y_NO = at::empty({x_NI.size(0), outputs}, x_NI.options().dtype(out_dtype));
  each_tile([&](const WeightTile& tile, const at::Tensor& values) {
    y_NO.narrow(1, tile.begin, tile.rows)
        .copy_(ops::linear(x_NI, values, part_of(bias_O, tile), out_dtype));
  });
  return y_NO;
}

at::Tensor TiledForm::input_grad(const at::Tensor& dy_NO) const {
  at::Tensor sum_NI;
  each_tile([&](const WeightTile& tile, const at::Tensor& values) {
    const at::Tensor part = ops::linear(
        dy_NO.narrow(1, tile.begin, tile.rows).contiguous(), values.t(), {}, at::kFloat);
    sum_NI = sum_NI.defined() ? sum_NI.add_(part) : part;
  });
  return sum_NI.to(dy_NO.scalar_type());
}

void TiledForm::weight_grad(const at::Tensor& dy_NO,
                            const at::Tensor& x_NI,
                            float factor,
                            StepContext& context) const {
  weight_gradient(context, [dy_NO, x_NI, factor, this] {
    for (const WeightTile& tile : tiles_) {
      GradSink& sink = tile.param->grad();
      ops::linear_weight_grad(dy_NO.narrow(1, tile.begin, tile.rows).contiguous(),
                              x_NI,
                              matrix(sink.out()),
                              sink.accumulate(),
                              factor);
      sink.written();
    }
  });
}

at::Tensor detail::tiled_linear(const at::Tensor& x,
                                const TiledForm& form,
                                const Param* bias,
                                std::optional<at::ScalarType> out_dtype,
                                StepContext& context,
                                Again again) {
  return detail::apply<TiledLinearNode>(
      x,
      form.tiles().front().param->tensor(),
      bias ? std::optional<at::Tensor>(bias->tensor()) : std::nullopt,
      out_dtype,
      TiledLinearNode::Use{&form, bias, &context, std::move(again)});
}

at::Tensor detail::tiled_embedding(const at::Tensor& ids,
                                   const TiledForm& form,
                                   StepContext& context) {
  return detail::apply<TiledEmbeddingNode>(
      ids, form.tiles().front().param->tensor(), TiledEmbeddingNode::Use{&form, &context});
}

}  // namespace tessera::nn

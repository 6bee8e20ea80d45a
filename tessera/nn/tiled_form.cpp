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

/// Releases a tile also if the work with it throws, whose error then counts.
class TileInUse {
 public:
  TileInUse(const std::function<void(std::size_t)>& release, std::size_t tile)
      : release_(&release), tile_(tile) {}
  ~TileInUse() {
    try {
      end();
    } catch (...) {  // the work has thrown: ranks that end a job let every wait throw
    }
  }
  TileInUse(const TileInUse&) = delete;
  TileInUse& operator=(const TileInUse&) = delete;
  void end() {
    const auto* const release = std::exchange(release_, nullptr);
    if (release != nullptr && *release) (*release)(tile_);
  }

 private:
  const std::function<void(std::size_t)>* release_;
  std::size_t tile_;
};

at::Tensor part_of(const at::Tensor& bias_O, const WeightTile& tile) {
  return bias_O.defined() ? bias_O.reshape({-1}).narrow(0, tile.begin, tile.rows) : bias_O;
}

/// The tokens whose rows are in a tile: their places among all tokens. The host finds them, because
/// it has to know their number.
at::Tensor tokens_in(const at::Tensor& ids_N, const WeightTile& tile) {
  const at::Tensor ids = host_values(ids_N);
  const at::Tensor inside = ids.ge(tile.begin).logical_and_(ids.lt(tile.begin + tile.rows));
  return on_device(at::nonzero(inside).view({-1}), ids_N.device());
}

}  // namespace

const at::Tensor& edge_of(const Param& weight) {
  const TiledForm* const form = tiled_form_of(weight);
  return form != nullptr ? form->tiles().front().param->tensor() : weight.tensor();
}

void TiledForm::each_tile(
    const std::function<void(const WeightTile& tile, const at::Tensor& values)>& work) const {
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    if (fetch_) fetch_(t);
    TileInUse in_use(release_, t);
    work(tiles_[t], matrix(tiles_[t].param->tensor().detach()));
    in_use.end();
  }
}

at::Tensor TiledForm::linear(const at::Tensor& x,
                             const Param& weight,
                             const Param* bias,
                             StepContext& context) const {
  const LayerForm* const own = form_of(weight_);
  return own != nullptr ? own->linear(x, weight, bias, context)
                        : plain_linear(x, weight, bias, context);
}

at::Tensor TiledForm::embedding(const at::Tensor& ids_BT,
                                const Param& table,
                                StepContext& context) const {
  const LayerForm* const own = form_of(weight_);
  return own != nullptr ? own->embedding(ids_BT, table, context)
                        : plain_embedding(ids_BT, table, context);
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

at::Tensor TiledForm::rows(const at::Tensor& ids_N) const {
  const at::Tensor& first = tiles_.front().param->tensor();
  const at::Tensor out_NC = at::empty({ids_N.numel(), first.size(-1)}, first.options());
  each_tile([&](const WeightTile& tile, const at::Tensor& values) {
    if (out_NC.is_meta()) return;
    const at::Tensor tokens = tokens_in(ids_N, tile);
    if (tokens.numel() == 0) return;
    const at::Tensor ids_in_tile = ids_N.index_select(0, tokens).sub_(tile.begin);
    out_NC.index_copy_(0, tokens, ops::embedding(values, ids_in_tile));
  });
  return out_NC;
}

void TiledForm::rows_grad(const at::Tensor& dy_NC, const at::Tensor& ids_N) const {
  for (const WeightTile& tile : tiles_) {
    if (ids_N.is_meta()) {
      tile.param->grad().written();
      continue;
    }
    const at::Tensor tokens = tokens_in(ids_N, tile);
    write_rows(dy_NC.index_select(0, tokens),
               ids_N.index_select(0, tokens).sub_(tile.begin),
               tile.param->grad());
  }
}

}  // namespace tessera::nn

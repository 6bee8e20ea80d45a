// SPDX-License-Identifier: Apache-2.0
// A weight that a rank has in tiles of rows, of which one at a time is in memory while a layer
// computes. Source: Rajbhandari et al. 2021, "ZeRO-Infinity" (memory-centric tiling). Legend: N
// rows of the input, I in, O out features.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/nn/layer_form.h"

namespace tessera::nn {

/// Rows of the weight, as a parameter of its own.
struct WeightTile {
  std::shared_ptr<Param> param;
  std::int64_t begin = 0, rows = 0;  ///< of the matrix [O, I]
};

/// y = x W^T is computed tile by tile of the output features. The gradient of x is the sum over the
/// tiles in their order, in fp32. Both depend on the tiles alone, and not on where these are
/// between uses. Every use of the weight fetches and releases all tiles in order. Used only on the
/// rank's own thread.
class TiledForm final : public LayerForm {
 public:
  /// `tiles`: at least one; together they are the weight, in order. `weight`: the weight as its
  /// block declared it. Its own form, such as an adapter, adds to the products and look-ups of the
  /// tiles.
  TiledForm(std::vector<WeightTile> tiles, Param weight)
      : tiles_(std::move(tiles)), weight_(std::move(weight)) {}

  /// Sets what brings the values of a tile into memory before its use, and what releases them.
  void bind(std::function<void(std::size_t tile)> fetch,
            std::function<void(std::size_t tile)> release) {
    fetch_ = std::move(fetch);
    release_ = std::move(release);
  }
  [[nodiscard]] const std::vector<WeightTile>& tiles() const { return tiles_; }
  /// Calls work(tile, values [rows, I]) for each tile in order, while it is in memory.
  void each_tile(
      const std::function<void(const WeightTile& tile, const at::Tensor& values)>& work) const;

  [[nodiscard]] at::Tensor linear(const at::Tensor& x,
                                  const Param& weight,
                                  const Param* bias,
                                  StepContext& context) const override;
  [[nodiscard]] at::Tensor embedding(const at::Tensor& ids_BT,
                                     const Param& table,
                                     StepContext& context) const override;

  /// x_NI W^T + bias_O, without autograd.
  [[nodiscard]] at::Tensor product(const at::Tensor& x_NI,
                                   const at::Tensor& bias_O,
                                   at::ScalarType out_dtype) const;
  /// dy_NO W in dy's dtype.
  [[nodiscard]] at::Tensor input_grad(const at::Tensor& dy_NO) const;
  /// Computes factor * dy_NO^T x_NI now or later, as the schedule asks, into the gradients of the
  /// tiles.
  void weight_grad(const at::Tensor& dy_NO,
                   const at::Tensor& x_NI,
                   float factor,
                   StepContext& context) const;
  /// The rows `ids_N` of a table [N, C], without autograd, and the gradient of the tiles by theirs.
  [[nodiscard]] at::Tensor rows(const at::Tensor& ids_N) const;
  void rows_grad(const at::Tensor& dy_NC, const at::Tensor& ids_N) const;

 private:
  std::vector<WeightTile> tiles_;
  Param weight_;  ///< without values
  std::function<void(std::size_t)> fetch_, release_;
};

/// Returns the form of a weight that is in tiles, else nullptr.
inline const TiledForm* tiled_form_of(const Param& param) {
  return param.extension() == nullptr ? nullptr : dynamic_cast<const TiledForm*>(form_of(param));
}

/// Returns the tensor through which autograd reaches the node that uses a weight: the weight's own,
/// or that of its first tile.
const at::Tensor& edge_of(const Param& weight);

}  // namespace tessera::nn

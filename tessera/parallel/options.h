// SPDX-License-Identifier: Apache-2.0
// The section `parallel`: how the ranks are divided among pipeline, tensor and context parallelism;
// the remaining factor is data-parallel, and experts are divided among ranks of it,
// of context parallelism and of tensor parallelism.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "tessera/config/choices.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/nn/context_parallel/context_parallel.h"

namespace tessera::parallel {

struct PipelineOptions {
  std::int64_t size = 1;
  std::string schedule = "1f1b";
  std::int64_t chunks = 1;
  json::Value partition;  ///< a name or a list of bounds; null: balanced
  bool scatter_gather = false;
  void describe(config::Fields& fields);
};
/// The arrangement of the ranks that share a layer.
enum class TensorLayout : std::uint8_t { OneD, TwoD, TwoAndAHalfD, ThreeD };
inline constexpr auto kTensorLayouts =
    std::to_array<config::Named<TensorLayout>>({{TensorLayout::OneD, "1d"},
                                                {TensorLayout::TwoD, "2d"},
                                                {TensorLayout::TwoAndAHalfD, "2.5d"},
                                                {TensorLayout::ThreeD, "3d"}});
struct TensorOptions {
  std::optional<TensorLayout> mode;
  std::int64_t size = 1;
  std::optional<std::int64_t> depth;
  /// Mode 1d: number of ranks with the same head of keys and values. Derived from the model.
  std::int64_t share_head = 1;
  /// The grid of the ranks; its product is less than `size` if that does not fit the mode.
  struct Grid {
    std::int64_t depth = 1, row = 1, col = 1;
    [[nodiscard]] std::int64_t size() const { return depth * row * col; }
    bool operator==(const Grid&) const = default;
  };
  [[nodiscard]] Grid grid() const;
  [[nodiscard]] TensorLayout layout() const { return mode.value_or(TensorLayout::OneD); }
  /// The name of layout() in a configuration.
  [[nodiscard]] std::string name() const { return config::name_of(kTensorLayouts, layout()); }
  void describe(config::Fields& fields);
};
inline constexpr auto kContextModes = std::to_array<config::Named<nn::ContextMode>>(
    {{nn::ContextMode::Ring, "ring"}, {nn::ContextMode::Ulysses, "ulysses"}});
struct ContextOptions {
  std::int64_t size = 1;
  nn::ContextMode mode = nn::ContextMode::Ring;
  void describe(config::Fields& fields);
};
/// Source: Colossal-AI's `parallel`, with Megatron-LM's sequence and context parallelism.
struct ParallelOptions {
  PipelineOptions pipeline;
  TensorOptions tensor;
  bool sequence = false;
  ContextOptions context;
  /// Number of ranks among which the experts of each layer are divided.
  std::int64_t expert = 1;
  /// Number of ranks that split the matrices of each expert: 1, or tensor.size.
  std::int64_t expert_tensor = 1;
  /// Number of ranks that together hold one copy of the model: pipeline x tensor x context.
  [[nodiscard]] std::int64_t ranks_per_model() const {
    return pipeline.size * tensor.size * context.size;
  }
  /// Sequence lengths must be multiples of it, so that ranks share the tokens evenly.
  [[nodiscard]] std::int64_t token_unit() const;
  void describe(config::Fields& fields);
};

}  // namespace tessera::parallel

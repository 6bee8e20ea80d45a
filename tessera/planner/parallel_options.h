// SPDX-License-Identifier: Apache-2.0
// The section `parallel`: how the ranks are spread over pipeline, tensor and context; what is left
// is data-parallel.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/nn/context_parallel/context_parallel.h"

namespace tessera::planner {

struct PipelineOptions {
  std::int64_t size = 1;
  std::string schedule = "1f1b";
  std::int64_t chunks = 1;
  json::Value partition;  ///< a word or a list of bounds; null: balanced
  bool scatter_gather = false;
  void describe(config::Fields& fields);
};
/// How the ranks that share a layer are arranged.
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
  /// Of mode 1d: ranks that have the same head of keys and values. Follows from the model.
  std::int64_t share_head = 1;
  /// How its ranks are arranged; their product is less than `size` where that does not fit the
  /// mode.
  struct Grid {
    std::int64_t depth = 1, row = 1, col = 1;
    [[nodiscard]] std::int64_t size() const { return depth * row * col; }
  };
  [[nodiscard]] Grid grid() const;
  [[nodiscard]] TensorLayout layout() const { return mode.value_or(TensorLayout::OneD); }
  /// The name of layout(), as a configuration has it.
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
  /// Ranks that hold one copy of the model between them: pipeline x tensor x context.
  [[nodiscard]] std::int64_t ranks_per_model() const {
    return pipeline.size * tensor.size * context.size;
  }
  /// Sequence lengths are multiples of it, so that ranks can share the tokens evenly.
  [[nodiscard]] std::int64_t token_unit() const;
  void describe(config::Fields& fields);
};

/// `source` with the short forms written out: "pipeline": 2 is {"size": 2}, null is nothing, and
/// Colossal-AI's tensor mode "sequence", which cuts tokens and no weights, is `context`; its
/// model.num_chunks is NUM_CHUNKS. Of DeepSpeed's blocks `pipeline` and `tensor_parallel`, whose
/// sizes are other names of keys here, what says nothing ("auto", an autotp_size of 0) is taken
/// out, and the partition "best" is "parameters"; an interval of `pipeline` above 0 switches
/// recomputation on where `activation_checkpointing` does not say what runs again. Colossal-AI's
/// fp16.mode without fp16.enabled is that, with the scaler "megatron". Pure.
json::Value spell_out_parallel(json::Value source);

/// The word of Colossal-AI's fp16.mode: "AMP_TYPE.NAIVE" and "NAIVE" are "naive".
std::string amp_type(std::string_view mode);

/// ParallelOptions::ranks_per_model() of a configuration with the short forms written out; 1 where
/// it cannot be read.
std::int64_t ranks_per_model(const json::Value& source);

/// Whether none of the sizes that ranks_per_model() multiplies has been told to be wrong: what
/// follows from the product means something.
bool sizes_are_known(const config::Problems& problems);
/// A problem with the whole product where the sizes do not divide `ranks`.
void check_product(const ParallelOptions& options,
                   int ranks,
                   config::Problems& problems,
                   const config::Origins& origins);

}  // namespace tessera::planner

// SPDX-License-Identifier: Apache-2.0
// Which parameters lie together in one flat buffer, in which order and with which padding. The run
// lays its memory out by this (model_instance.h, shard_store.h), and the planner predicts it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/nn/block.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/working_weights.h"
#include "tessera/tensor/flat_buffer.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// DeepSpeed's default of stage3_param_persistence_threshold.
inline constexpr std::int64_t kPersistenceThreshold = 100'000;

/// How the working weights are spread over the data-parallel ranks.
struct WeightOptions {
  DType working = DType::F32;
  Residency residency = Residency::Replicated;
  /// Sharded: parameters with fewer elements than this stay whole all the same, as long as no more
  /// than `persistent` elements do.
  std::int64_t persistence_threshold = 0;
  std::int64_t persistent = std::numeric_limits<std::int64_t>::max();
  /// Where several ranks hold a layer between them: how, and whether they share the tokens between
  /// layers too.
  nn::TensorMode tensor = nn::TensorMode::OneD;
  bool sequence = false;
  /// Where several ranks share the tokens of every sample: how.
  nn::ContextMode context = nn::ContextMode::Ring;
  /// Tables over the vocabulary have buffers of their own, so that gradients may travel as rows.
  bool tables_apart = false;
  /// Whether a parameter of that name stays as it is.
  std::function<bool(const std::string&)> frozen = {};
  /// Whether a parameter of that name, which is frozen and of one block, is kept in fewer bits.
  std::function<bool(const std::string&)> packed = {};
  PackingOptions packing = {};  ///< of these
};

/// The parameters of one block, as this rank holds them: frozen and placed.
struct BlockParams {
  std::string name;  ///< of the block
  nn::ParamInfos params;
};

/// Parameters that will lie in one flat buffer: those of one block, or one tied parameter, or a
/// table by itself.
struct FlatGroupPlan {
  struct BlockUse {
    int block = 0;
    std::vector<std::size_t> params;  ///< indices of the block's parameters, one a segment
  };
  std::string name;
  bool trainable = true;
  Residency residency = Residency::Replicated;
  nn::ParamInfos params;       ///< of the segments
  std::vector<BlockUse> uses;  ///< blocks that use it, ascending
  [[nodiscard]] FlatLayout layout(int shards) const { return {name, params, shards}; }
};
struct FlatPlan {
  std::vector<FlatGroupPlan> groups;
  /// The parameters in the order of the model, tied ones once: pairs (group, segment).
  std::vector<std::pair<int, int>> order;
};
/// `blocks`: all of the model. Pure. Error{Bug} for blocks that declare a tied parameter with
/// different shapes.
FlatPlan plan_flat_groups(const std::vector<BlockParams>& blocks, const WeightOptions& options);

/// The range of a flat buffer that a rank updates, whose masters and states it keeps: all of it in
/// stage 0 of ZeRO, else the shard of its index.
struct OwnedRange {
  std::int64_t begin = 0, numel = 0;
  [[nodiscard]] Segment of(const Segment& segment) const {
    return segment.within(begin, begin + numel);
  }
};
OwnedRange owned_range(const FlatLayout& layout, int stage, int index);

/// Whether fp32 masters are kept apart from the working weights.
bool has_separate_masters(DType working, DType masters, bool local_weights);

/// Elements of a state of a parameter, of which the rank updates `numel` elements.
std::int64_t state_numel(const optim::StateSpec& state,
                         const optim::ParamFacts& facts,
                         std::int64_t numel);

}  // namespace tessera::parallel

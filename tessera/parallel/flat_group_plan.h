// SPDX-License-Identifier: Apache-2.0
// Plans which parameters share a flat buffer, in which order and with which padding. The run
// (model_instance.h, shard_store.h) lays out its memory by this plan, and the planner predicts
// memory from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/memory/tiers/tier.h"
#include "tessera/mesh/expert_fold.h"
#include "tessera/nn/block.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/group_axes.h"
#include "tessera/parallel/packed_weights.h"
#include "tessera/parallel/weight_tiles.h"
#include "tessera/tensor/flat_buffer.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// Default of DeepSpeed's stage3_param_persistence_threshold.
inline constexpr std::int64_t kPersistenceThreshold = 100'000;

/// How the ranks of a flat buffer keep its working weights. Replicated: every rank has and writes
/// all of them. Whole: a rank writes its part and has all parts (stages 1 and 2). Sharded: a rank
/// has its part, and all parts only while they are used (stage 3). Packed: every rank has all of
/// them in fewer bits, and unpacks them while they are used. Resting: like Sharded, but a rank's
/// part rests in a tier; also for a single rank. OnHost: like Sharded, but the part of a rank on a
/// device is in pinned memory of the host; also for a single rank. On the CPU it is Sharded.
enum class Residency : std::uint8_t { Replicated, Whole, Sharded, Packed, Resting, OnHost };
/// True if weights are gathered for their use.
constexpr bool gathers(Residency residency) {
  return residency == Residency::Sharded || residency == Residency::Resting ||
         residency == Residency::OnHost;
}
/// The form in which sharded weights are sent: as values of the working dtype, or as 8-bit codes.
enum class GatherForm : std::uint8_t { Values, Int8 };
/// Returns the name of the strategy (working_weights.h) of a buffer of `ranks` ranks.
std::string_view weight_strategy(Residency residency, GatherForm form, int ranks);

/// Working weights that rest on a disk while no block uses them.
struct WeightOffload {
  std::string folder;          ///< absolute
  int buffers = 3;             ///< parts of buffers in memory at a time
  std::int64_t in_memory = 0;  ///< WeightOptions::in_memory
  bool operator==(const WeightOffload&) const = default;
};

/// The distribution of the working weights over the data-parallel ranks.
struct WeightOptions {
  DType working = DType::F32;
  Residency residency = Residency::Replicated;
  /// If weights are sharded: parameters with fewer elements than this stay whole nevertheless, up
  /// to `persistent` elements in total.
  std::int64_t persistence_threshold = 0;
  std::int64_t persistent = std::numeric_limits<std::int64_t>::max();
  /// If weights rest: buffers stay in memory in the order of the model, up to this number of
  /// elements in total.
  std::int64_t in_memory = 0;
  bool in_memory_on_host = false;  ///< these are in the memory of the host of a device
  /// If weights rest: their tier, which must outlive the model, and the number of parts of buffers
  /// that are in memory at a time.
  memory::Tier* tier = nullptr;
  int tier_buffers = 3;
  /// If several ranks share a layer: the mode, and whether they share the tokens between layers
  /// too.
  nn::TensorMode tensor = nn::TensorMode::OneD;
  bool sequence = false;
  /// If several ranks share the tokens of every sample: the mode.
  nn::ContextMode context = nn::ContextMode::Ring;
  /// The ranks among which the experts of a layer are divided.
  mesh::ExpertFold experts = {};
  /// Tables over the vocabulary get their own buffers, so that their gradients can be sent as rows.
  bool tables_apart = false;
  /// Returns whether the parameter of that name is frozen.
  std::function<bool(const std::string&)> frozen = {};
  /// A number for the parameter of that name: parameters with different numbers do not share a flat
  /// buffer, so that each set can begin to be trained, or be frozen, without moving the others. If
  /// empty, all have 0.
  std::function<int(const std::string&)> apart = {};
  /// Says whether the parameter of this name, which must be frozen and in one block, is stored in
  /// fewer bits.
  std::function<bool(const std::string&)> packed = {};
  PackingOptions packing = {};  ///< packing of these parameters
  /// The number of tiles of a parameter, each of which is gathered when its layer computes with it,
  /// and not with the block; empty: none is divided.
  TileCount tiles = {};
  /// The forms in which sharded weights are sent: those that are trained, and those that are
  /// frozen.
  GatherForm trained_gather = GatherForm::Values, frozen_gather = GatherForm::Values;
};

/// The parameters of one block as this rank holds them: frozen flags and placement are set.
struct BlockParams {
  std::string name;  ///< name of the block
  nn::ParamInfos params;
};

/// Parameters that share one flat buffer: those of one block, except for its experts, or the
/// experts of a block, or one tied parameter, or a table alone, or a tile of a parameter.
struct FlatGroupPlan {
  struct BlockUse {
    int block = 0;
    std::vector<std::size_t> params;  ///< indices of the block's parameters, one per parameter
  };
  std::string name;
  bool trainable = true;
  Residency residency = Residency::Replicated;
  GroupAxes axes;
  nn::ParamInfos params;
  std::vector<BlockUse> uses;  ///< blocks that use the buffer, ascending
  bool tile = false;           ///< it has a tile of a parameter
  [[nodiscard]] FlatLayout layout(int shards) const { return {name, params, shards}; }
  /// The name of the strategy that keeps the weights on `ranks` ranks.
  [[nodiscard]] std::string_view strategy(const WeightOptions& options, int ranks) const {
    return weight_strategy(
        residency, trainable ? options.trained_gather : options.frozen_gather, ranks);
  }
  [[nodiscard]] bool packed() const { return residency == Residency::Packed; }
};
struct FlatPlan {
  std::vector<FlatGroupPlan> groups;
  /// The parameters in the order of the model, tied ones once, as pairs (group, parameter).
  std::vector<std::pair<int, int>> order;
};
/// `blocks`: all blocks of the model. Pure. Throws Error{Bug} if blocks declare a tied parameter
/// with different shapes, Error{Unsupported} if a stacked parameter is to be packed.
FlatPlan plan_flat_groups(const std::vector<BlockParams>& blocks, const WeightOptions& options);

/// The range of a flat buffer that a rank updates and whose master weights and states it keeps: the
/// whole buffer in ZeRO stage 0, else the rank's shard.
struct OwnedRange {
  std::int64_t begin = 0, numel = 0;
  [[nodiscard]] Segment of(const Segment& segment) const {
    return segment.within(begin, begin + numel);
  }
};
OwnedRange owned_range(const FlatLayout& layout, int stage, int index);

/// True if fp32 master weights are stored separately from the working weights.
bool has_separate_masters(DType working, DType masters, bool local_weights);

/// Number of elements of a parameter's state on a rank that updates `numel` of the parameter's
/// elements.
std::int64_t state_numel(const optim::StateSpec& state,
                         const optim::ParamFacts& facts,
                         std::int64_t numel);

}  // namespace tessera::parallel

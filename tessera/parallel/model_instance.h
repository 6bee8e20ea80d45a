// SPDX-License-Identifier: Apache-2.0
// A model on this rank: its blocks, and their working weights in flat buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"
#include "tessera/comm/world.h"
#include "tessera/nn/block.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/nn/expert_parallel.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/nn/tiled_form.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/pipeline/stage_layout.h"
#include "tessera/parallel/tile_gather.h"
#include "tessera/parallel/working_weights.h"
#include "tessera/tensor/flat_buffer.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// A block that uses a flat buffer, and its handles to the buffer's parameters in the order of
/// FlatLayout::params().
struct BlockUse {
  int block = 0;
  std::vector<Param*> params;
};

/// Parameters that share one buffer: those of one block, except for its experts, or the experts of
/// a block, or one tied parameter (then with several uses), or a table alone, or a tile of a
/// parameter.
struct FlatGroup {
  FlatLayout layout;
  bool trainable = true;
  GroupAxes axes;
  GroupRanks ranks;            ///< the groups of this rank over `axes`
  std::vector<BlockUse> uses;  ///< uses on this stage, ascending by block
  std::unique_ptr<WorkingWeights> weights;
  std::vector<int> use_stages = {0};  ///< stages of all uses in the model, ascending by block
  bool counted = true;    ///< the first use is on this stage, which counts and saves the group
  bool borrowed = false;  ///< the weights are another model's, which alone writes them
  bool tile = false;      ///< layers gather and release the weights themselves (tile_gather.h)

  /// True if blocks of several stages use the group.
  [[nodiscard]] bool across_stages() const { return uses.size() < use_stages.size(); }
};

/// A parameter of the whole model, on any stage.
struct ParamPlace {
  std::shared_ptr<const ParamInfo> info;
  int stage = 0;        ///< stage of its first use
  int block = 0;        ///< the last block that uses it
  bool shared = false;  ///< several blocks use it
};

/// Builds the blocks of this rank's stage, lays out their parameters and attaches the working
/// tensors (zeros). For the blocks of other stages it keeps only the result of nn::declared_by();
/// block indices are those of the whole model. Used only on the rank's own thread.
class ModelInstance {
 public:
  /// The world must outlive this. `lender`: a model of the same world. Flat buffers of frozen
  /// parameters that it has with the same names and shapes are its memory, and not allocated again;
  /// its weights must be complete, and remain as they are. Throws Error{Bug} if uses of a tied
  /// parameter disagree, Error{Shape}, on the last part's stage, if the model has no objective, and
  /// Error{Memory} from the transport.
  ModelInstance(const nn::Model& model,
                WeightOptions options,
                comm::World& world,
                StageLayout layout = {},
                const ModelInstance* lender = nullptr);

  [[nodiscard]] int num_blocks() const { return static_cast<int>(blocks_.size()); }
  [[nodiscard]] const StageLayout& layout() const { return layout_; }
  [[nodiscard]] c10::Device device() const { return device_; }  ///< of weights and activations
  [[nodiscard]] int stage() const { return stage_; }            ///< stage of this rank
  /// Blocks [first, second) of a chunk of this stage.
  [[nodiscard]] std::pair<int, int> blocks_of(int chunk) const {
    return layout_.blocks(stage_, chunk, num_blocks());
  }
  /// block() and params() accept only blocks of this stage.
  [[nodiscard]] nn::Block& block(int index) {
    return *blocks_[static_cast<std::size_t>(index)].block;
  }
  [[nodiscard]] const std::string& name(int index) const {
    return blocks_[static_cast<std::size_t>(index)].name;
  }
  [[nodiscard]] std::span<const std::shared_ptr<Param>> params(int index) const {
    return blocks_[static_cast<std::size_t>(index)].params;
  }
  /// Freezes the parameters of the sets (WeightOptions::apart, counted from 1) whose entry is true,
  /// and lets those of the others be trained. Returns the groups that changed. Neither values nor
  /// their places change; owners of gradients and states must follow.
  std::vector<int> freeze_sets(const std::vector<bool>& frozen);
  /// Converts a model that will only be read: matrices become 8-bit integers with a scale per row,
  /// and the flat buffers are freed. Blocks then compute in bf16. Tensor-parallel ranks of mode 1d
  /// get their parts of the values of one rank, because a scale is that of the whole row;
  /// collective. Weights must not be sharded over other ranks.
  void to_int8();
  /// The objective; nullptr if the model's last block is on another stage.
  [[nodiscard]] nn::Objective* objective() { return objective_; }
  [[nodiscard]] std::vector<FlatGroup>& groups() { return groups_; }
  /// The groups that the block uses, as indices of groups().
  [[nodiscard]] std::span<const int> groups_of(int block) const {
    return blocks_[static_cast<std::size_t>(block)].groups;
  }
  /// Takes part in the gathers of ranks whose layers use tiles of the block more often than those
  /// of this rank; call it after each run of a block that reads weights. Collective over the ranks
  /// that gather tiles for each other; else it does nothing.
  void finish_tiles(int block) {
    if (blocks_[static_cast<std::size_t>(block)].gathers_tiles) tile_gather_->finish();
  }
  /// This stage's parameters in the order of the model, independent of the residency, as pairs
  /// (group, index of FlatLayout::params()). Sums in this order are the same in every layout.
  [[nodiscard]] const std::vector<std::pair<int, int>>& canonical_order() const { return order_; }
  /// All parameters of the model in that order, tied ones once.
  [[nodiscard]] const std::vector<ParamPlace>& places() const { return places_; }
  [[nodiscard]] DType working() const { return options_.working; }
  [[nodiscard]] const WeightOptions& weight_options() const { return options_; }
  /// The sharing of layers among ranks; nullptr: every rank has whole layers.
  [[nodiscard]] const nn::TensorParallel* tensor_parallel() const {
    return tensor_ ? &*tensor_ : nullptr;
  }
  /// The sharing of every sample's tokens among ranks; nullptr: every rank has all tokens.
  [[nodiscard]] const nn::ContextParallel* context_parallel() const {
    return context_ ? &*context_ : nullptr;
  }
  /// The division of experts among ranks; nullptr: every rank has all experts.
  [[nodiscard]] const nn::ExpertParallel* expert_parallel() const {
    return experts_ ? &*experts_ : nullptr;
  }
  /// The ranks over which the gradients of all buffers are summed. Throws Error{Unsupported}, with
  /// `what` needs it, if the buffers have different ones: `what` cannot be used with experts on
  /// several ranks.
  [[nodiscard]] const GroupRanks& only_fold(const std::string& what) const;
  /// Number of parameter elements over all ranks that share layers or experts; tied parameters
  /// count once, padding does not count.
  [[nodiscard]] std::int64_t num_parameters() const;

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<nn::Block> block;
    std::vector<std::shared_ptr<Param>> params;
    std::vector<int> groups;
    bool gathers_tiles = false;
  };
  void build(const nn::Model& model);
  [[nodiscard]] const FlatGroup* lent_by(const ModelInstance* lender,
                                         const FlatGroupPlan& plan) const;
  int keep(const FlatGroupPlan& plan, comm::World& world, const FlatGroup* lent);
  void group(comm::World& world, const ModelInstance* lender);
  void attach();
  void forget_other_stages();
  std::vector<std::shared_ptr<Param>> divided(std::vector<std::shared_ptr<Param>> params);
  void bind_tiles(comm::World& world);

  WeightOptions options_;
  c10::Device device_;
  StageLayout layout_;
  int stage_ = 0;
  std::optional<nn::TensorParallel> tensor_;
  std::optional<nn::ContextParallel> context_;
  std::optional<nn::ExpertParallel> experts_;
  GroupRanks dense_ranks_;
  std::shared_ptr<UnitBuffers> resting_;  ///< of weights that rest in a tier
  std::shared_ptr<Uploads> uploads_;      ///< of weights outside of a device; nullptr on the CPU
  std::vector<Entry> blocks_;
  std::vector<FlatGroup> groups_;
  /// The weights in tiles, which their blocks hold without owning them, and their forms.
  std::vector<std::pair<std::shared_ptr<Param>, std::shared_ptr<nn::TiledForm>>> tiled_;
  std::unique_ptr<TileGather> tile_gather_;  ///< nullptr: no weight is in tiles
  std::vector<std::pair<int, int>> order_;
  std::vector<ParamPlace> places_;
  nn::Objective* objective_ = nullptr;
};

}  // namespace tessera::parallel

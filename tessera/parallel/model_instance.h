// SPDX-License-Identifier: Apache-2.0
// A model on this rank: its blocks, and their working weights side by side in flat buffers.
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
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/pipeline/stage_layout.h"
#include "tessera/parallel/working_weights.h"
#include "tessera/tensor/flat_buffer.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// A block that uses a flat buffer, and its handles on the buffer's parameters in the order of the
/// segments.
struct BlockUse {
  int block = 0;
  std::vector<Param*> params;
};

/// Parameters that lie in one buffer: those of one block, or one tied parameter (then with several
/// uses), or a table by itself.
struct FlatGroup {
  FlatLayout layout;
  bool trainable = true;
  std::vector<BlockUse> uses;  ///< of this stage, ascending by block
  WorkingWeights weights;
  std::vector<int> use_stages = {0};  ///< of all uses in the model, ascending by block
  bool counted = true;  ///< the first use stands on this stage, which counts and saves it

  /// Blocks of several stages use it.
  [[nodiscard]] bool across_stages() const { return uses.size() < use_stages.size(); }
};

/// A parameter of the whole model, wherever it stands.
struct ParamPlace {
  std::shared_ptr<const ParamInfo> info;
  int stage = 0;        ///< of its first use
  int block = 0;        ///< the last that uses it
  bool shared = false;  ///< by several blocks
};

/// Builds the blocks of this rank's stage and no others, lays their parameters out and attaches the
/// working tensors (zeros). Of the other stages' blocks it keeps what nn::declared_by() says;
/// indices of blocks are those of the whole model. Threads: the rank's own.
class ModelInstance {
 public:
  /// The world must outlive this. Errors: Error{Bug} for uses of a tied parameter that disagree,
  /// Error{Shape}, on the last part's stage, for a model without an objective, Error{Memory} from
  /// the transport.
  ModelInstance(const nn::Model& model,
                WeightOptions options,
                comm::World& world,
                StageLayout layout = {});

  [[nodiscard]] int num_blocks() const { return static_cast<int>(blocks_.size()); }
  [[nodiscard]] const StageLayout& layout() const { return layout_; }
  [[nodiscard]] c10::Device device() const { return device_; }  ///< of weights and activations
  [[nodiscard]] int stage() const { return stage_; }            ///< of this rank
  /// Blocks [first, second) of a chunk of this stage.
  [[nodiscard]] std::pair<int, int> blocks_of(int chunk) const {
    return layout_.blocks(stage_, chunk, num_blocks());
  }
  /// block() and params() of this stage's blocks only.
  [[nodiscard]] nn::Block& block(int index) {
    return *blocks_[static_cast<std::size_t>(index)].block;
  }
  [[nodiscard]] const std::string& name(int index) const {
    return blocks_[static_cast<std::size_t>(index)].name;
  }
  [[nodiscard]] std::span<const std::shared_ptr<Param>> params(int index) const {
    return blocks_[static_cast<std::size_t>(index)].params;
  }
  /// A model that is only read from now on, on one rank: matrices in eight bits with a scale a row,
  /// and the flat buffers given back. Blocks compute in bf16 around them.
  void to_int8();
  /// Of the model's last block; nullptr where that stands on another stage.
  [[nodiscard]] nn::Objective* objective() { return objective_; }
  [[nodiscard]] std::vector<FlatGroup>& groups() { return groups_; }
  /// Groups that the block uses, as indices of groups().
  [[nodiscard]] std::span<const int> groups_of(int block) const {
    return blocks_[static_cast<std::size_t>(block)].groups;
  }
  /// This stage's parameters in the order of the model, whatever the residency: an order for sums
  /// that no layout changes. Pairs (group, segment).
  [[nodiscard]] const std::vector<std::pair<int, int>>& canonical_order() const { return order_; }
  /// All parameters of the model in that order, tied ones once.
  [[nodiscard]] const std::vector<ParamPlace>& places() const { return places_; }
  [[nodiscard]] DType working() const { return options_.working; }
  /// How ranks hold layers between them; nullptr: every rank has whole ones.
  [[nodiscard]] const nn::TensorParallel* tensor_parallel() const {
    return tensor_ ? &*tensor_ : nullptr;
  }
  /// How ranks share the tokens of every sample; nullptr: every rank has all.
  [[nodiscard]] const nn::ContextParallel* context_parallel() const {
    return context_ ? &*context_ : nullptr;
  }
  /// Parameters of all tensor-parallel ranks, tied ones counted once, padding not counted.
  [[nodiscard]] std::int64_t num_parameters() const;

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<nn::Block> block;
    std::vector<std::shared_ptr<Param>> params;
    std::vector<int> groups;
  };
  void build(const nn::Model& model);
  int keep(const FlatGroupPlan& plan, comm::World& world);
  void group(comm::World& world);
  void attach();
  void forget_other_stages();

  WeightOptions options_;
  c10::Device device_;
  StageLayout layout_;
  int stage_ = 0;
  std::optional<nn::TensorParallel> tensor_;
  std::optional<nn::ContextParallel> context_;
  std::vector<Entry> blocks_;
  std::vector<FlatGroup> groups_;
  std::vector<std::pair<int, int>> order_;
  std::vector<ParamPlace> places_;
  nn::Objective* objective_ = nullptr;
};

}  // namespace tessera::parallel

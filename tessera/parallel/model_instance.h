// SPDX-License-Identifier: Apache-2.0
// A model on this rank: its blocks, and their working weights side by side in flat buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"
#include "tessera/comm/transport.h"
#include "tessera/nn/block.h"
#include "tessera/tensor/flat_buffer.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// A block that uses a flat buffer, and its handles on the buffer's parameters in the order of the
/// segments.
struct Home {
  int block = 0;
  std::vector<Param*> params;
};

/// Parameters that lie in one buffer: those of one block, or one tied parameter (then with several
/// homes).
struct FlatGroup {
  FlatLayout layout;
  bool trainable = true;
  std::vector<Home> homes;  ///< ascending by block
  comm::RegionPtr region;   ///< of the working weights: peers read and write it
  at::Tensor working;       ///< 1-d, layout.numel() elements of the working dtype
};

/// Builds the blocks, lays their parameters out and attaches the working tensors (uninitialised
/// zeros). Threads: the rank's own.
class ModelInstance {
 public:
  /// `shards`: data-parallel ranks that share a buffer. Errors: Error{Bug} for homes of a tied
  /// parameter that disagree, Error{Shape} for a model without an objective, Error{Memory} from the
  /// transport.
  ModelInstance(const nn::Model& model, int shards, DType working, comm::Transport& transport);

  [[nodiscard]] int num_blocks() const { return static_cast<int>(blocks_.size()); }
  [[nodiscard]] nn::Block& block(int index) {
    return *blocks_[static_cast<std::size_t>(index)].block;
  }
  [[nodiscard]] const std::string& name(int index) const {
    return blocks_[static_cast<std::size_t>(index)].name;
  }
  [[nodiscard]] std::span<const std::shared_ptr<Param>> params(int index) const {
    return blocks_[static_cast<std::size_t>(index)].params;
  }
  [[nodiscard]] nn::Objective& objective() { return *objective_; }
  [[nodiscard]] std::vector<FlatGroup>& groups() { return groups_; }
  /// Groups that the block uses, as indices of groups().
  [[nodiscard]] std::span<const int> groups_of(int block) const {
    return blocks_[static_cast<std::size_t>(block)].groups;
  }
  [[nodiscard]] DType working() const { return working_; }
  /// Parameters, tied ones counted once, padding not counted.
  [[nodiscard]] std::int64_t num_parameters() const;

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<nn::Block> block;
    std::vector<std::shared_ptr<Param>> params;
    std::vector<int> groups;
  };
  void build(const nn::Model& model);
  void group(int shards);
  void attach(comm::Transport& transport);

  DType working_;
  std::vector<Entry> blocks_;
  std::vector<FlatGroup> groups_;
  nn::Objective* objective_ = nullptr;
};

}  // namespace tessera::parallel

// SPDX-License-Identifier: Apache-2.0
// The state that a compressed rule keeps on every rank in addition to the shards: the exchanged
// vectors, their error feedback, and a few numbers per parameter.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/optim/compressed.h"
#include "tessera/parallel/compressed/compressed_reduce.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

struct PlannedStage;

/// Memory: 4 bytes per parameter element for the vectors, and the memory of CompressedReduce if
/// there are several ranks. A single rank compresses nothing. Used only on the rank's own thread.
class CompressedState {
 public:
  /// A trained parameter; tensors are in the model's order.
  struct Tensor {
    int group = 0, segment = 0;
    const Segment* place = nullptr;
    optim::ParamFacts facts;
    at::Tensor exchanged;         ///< state()[0], not sharded
    std::vector<double> scalars;  ///< CompressedRule::num_scalars()
    bool counted = true;          ///< this stage saves the tensor
  };

  /// World, model and rule must outlive this.
  CompressedState(comm::World& world, ModelInstance& model, const optim::CompressedRule& rule);
  /// Also of the masters that ranks keep where their weights differ; see UpdateBytes.
  static std::int64_t bytes(const PlannedStage& stage, const optim::Rule& rule);

  [[nodiscard]] const optim::CompressedRule& rule() const { return rule_; }
  [[nodiscard]] std::vector<Tensor>& tensors() { return tensors_; }
  [[nodiscard]] Tensor& tensor(int group, int segment);

  /// Completes the vectors on every rank from the ranges that each rank has updated. `own`: this
  /// rank's ranges, views of `exchanged`.
  void gather(const std::vector<at::Tensor>& own);
  /// Passes the root mean squares of all vectors to CompressedRule::start().
  void start();
  /// Replaces the vectors by their mean over the ranks.
  void mean();
  /// Sets the error feedback to zero.
  void forget();

  /// Adds a state of a tensor that differs between ranks, for pieces() and load(): numel elements
  /// at `data`.
  void add_rank_state(const std::string& state,
                      const Tensor& tensor,
                      float* data,
                      std::int64_t numel);
  /// Appends the entries for a save: the state that differs between ranks, as rows of [ranks,
  /// length], and the scalars of the parameters for which `first_here` is true.
  void add_pieces(std::vector<checkpoint::PieceBytes>& out, const std::vector<bool>& first_here);
  /// Loads the per-rank state from a checkpoint. If a different number of ranks wrote it, every
  /// rank takes the mean of their state, which preserves the sum over the ranks; a single rank
  /// drops the error feedback.
  void load(const checkpoint::Checkpoint& checkpoint);

 private:
  struct RankVector {
    std::string name;
    float* data = nullptr;
    std::int64_t numel = 0;   ///< elements without padding
    std::int64_t length = 0;  ///< elements with padding
    bool counted = true;
  };
  struct Errors {
    std::string worker, server;  ///< names in a checkpoint
    std::size_t vector = 0;
    bool counted = true;
  };
  void add_error_pieces(std::vector<checkpoint::PieceBytes>& out);
  [[nodiscard]] std::vector<Errors> errors() const;
  void load_rows(const checkpoint::Checkpoint& checkpoint, const RankVector& to);
  void load_server(const checkpoint::Checkpoint& checkpoint, const Errors& errors);

  comm::World& world_;
  const optim::CompressedRule& rule_;
  const comm::Group& group_;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<std::size_t>> index_;  ///< index of a tensor, by group and segment
  at::Tensor flat_;
  std::unique_ptr<CompressedReduce> reduce_;  ///< only if there are several ranks
  std::vector<RankVector> rank_states_;
  bool exchanged_ = false;  ///< until then, the error feedback is zero and not saved
};

}  // namespace tessera::parallel

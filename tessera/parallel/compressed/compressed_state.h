// SPDX-License-Identifier: Apache-2.0
// What a compressed rule keeps on every rank beside the shards: the vectors that are exchanged,
// their error feedback, and a few numbers for each parameter.
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

/// Memory: 4 bytes a parameter for the vectors, and those of CompressedReduce where there are
/// several ranks. Threads: the rank's own. A rank alone compresses nothing.
class CompressedState {
 public:
  /// A parameter that is trained, in the model's order.
  struct Tensor {
    int group = 0, segment = 0;
    const Segment* place = nullptr;
    optim::ParamFacts facts;
    at::Tensor exchanged;         ///< state()[0], whole
    std::vector<double> scalars;  ///< CompressedRule::num_scalars()
    bool counted = true;          ///< this stage saves it
  };

  /// World, model and rule must outlive this.
  CompressedState(comm::World& world, ModelInstance& model, const optim::CompressedRule& rule);

  [[nodiscard]] const optim::CompressedRule& rule() const { return rule_; }
  [[nodiscard]] std::vector<Tensor>& tensors() { return tensors_; }
  [[nodiscard]] Tensor& tensor(int group, int segment);

  /// Makes the vectors whole on every rank, from the ranges that each rank has updated. `own`:
  /// those of this rank, views of `exchanged`.
  void gather(const std::vector<at::Tensor>& own);
  /// The roots of the mean squares of all vectors, for CompressedRule::start().
  void start();
  /// The mean of the ranks' vectors, in place.
  void mean();
  /// Sets the error feedback to zero.
  void forget();

  /// A state of a tensor that differs between ranks, for pieces() and load(): numel elements at
  /// `data`.
  void add_rank_state(const std::string& state,
                      const Tensor& tensor,
                      float* data,
                      std::int64_t numel);
  /// Appends for a save the state that differs between ranks, in rows of [ranks, length], and the
  /// scalars of the parameters for which `first_here` is true.
  void add_pieces(std::vector<checkpoint::PieceBytes>& out, const std::vector<bool>& first_here);
  /// Loads the state of ranks from a checkpoint. Where another number of ranks wrote it, every rank
  /// takes the mean of theirs, so that the sum over the ranks stays what it was; a single rank
  /// drops the error feedback.
  void load(const checkpoint::Checkpoint& checkpoint);

 private:
  struct RankVector {
    std::string name;
    float* data = nullptr;
    std::int64_t numel = 0;   ///< that mean something
    std::int64_t length = 0;  ///< with padding
    bool counted = true;
  };
  struct Errors {
    std::string worker, server;  ///< names
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
  std::vector<std::vector<std::size_t>> index_;  ///< of a tensor, by group and segment
  at::Tensor flat_;
  std::unique_ptr<CompressedReduce> reduce_;  ///< of several ranks
  std::vector<RankVector> rank_states_;
  bool exchanged_ = false;  ///< before, errors are zero and not saved
};

}  // namespace tessera::parallel

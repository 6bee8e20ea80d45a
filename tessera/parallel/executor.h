// SPDX-License-Identifier: Apache-2.0
// Runs a list of actions on a model: forward on detached inputs, backward block by block in
// reverse.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/activation_store.h"
#include "tessera/parallel/batch_uploads.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/pipeline/stage_link.h"

namespace tessera::parallel {

/// The inputs of a step on this rank.
struct StepInput {
  std::int64_t step = 0;  ///< number of updates made before
  std::uint64_t seed = 0;
  int num_micros = 1;
  /// Factor of all gradients (fp16).
  double loss_scale = 1.0;
  /// Creates micro-batch `micro`; called by Load.
  std::function<nn::Batch(int micro)> load;
  /// Converts this rank's denominators [num_micros][denominator] to the global ones; called once,
  /// after the loads. On stages without the objective the argument is empty; they need the global
  /// ones too.
  std::function<std::vector<double>(const std::vector<std::vector<double>>&)> global_denominators;
};
/// A loss term (nn::Term) of a block of the model and its values in fp64.
struct TermValues {
  int block = 0;
  std::string name;
  int denominator = 0;
  double weight = 1.0;
  std::vector<double> values;  ///< not multiplied by the term's weight
};
/// The results of a step, in fp64 and divided by the global denominators.
struct StepOutput {
  /// [num_micros][block of the model]; 0 for blocks on other stages.
  std::vector<double> block_losses;
  /// The terms of this rank's blocks, [num_micros] values each, in the order of the blocks.
  std::vector<TermValues> terms;
  std::vector<double> denominators;  ///< global
  /// The loss of each micro-batch, [num_micros]: the sum over its blocks in order. With several
  /// stages, sum block_losses over the stages first.
  [[nodiscard]] std::vector<double> losses(int num_micros) const;
};

/// Seconds spent in each part since the last call of take_times().
struct StepTimes {
  double data = 0, forward = 0, backward = 0;
  /// Time to receive from other stages (waits and copies), which is part of forward and backward.
  double receive = 0;
};

/// Blocks that keep only their input for the backward pass and run their forward again there.
/// Results keep the same bits: dropout is a function of counters, and no operation depends on the
/// grad mode. Source: Chen et al. 2016, "Training deep nets with sublinear memory cost"; selective:
/// Korthikanti et al. 2022.
struct Recompute {
  std::vector<bool> blocks;  ///< one entry per block, or empty; the objective is never recomputed
  bool regions = false;      ///< selective recompute: the named regions of blocks (attention cores)
  bool operator==(const Recompute&) const = default;
};

/// Executes the actions of one pipeline stage: runs its blocks and exchanges flows and gradients
/// with the other stages. A micro-batch is copied to the model's device while the one before is
/// computed (batch_uploads.h). The receives of a pass are posted before the previous pass runs, so
/// that they overlap with it; this costs the memory of one message. Used only on the rank's own
/// thread. Errors of libtorch become Error{Bug} (or Memory) that name the block. Throws
/// Error{Shape} if, in training, the objective returns no loss term or a term's denominator does
/// not exist.
class Executor {
 public:
  /// `link` must outlive this; it is required if the model has several stages. `store` must outlive
  /// this too: the inputs of blocks that run again rest in it, except for tensors that the block
  /// passes on, and those that the block before saves for its own backward pass.
  Executor(ModelInstance& model,
           std::vector<Policy*> policies,
           Recompute recompute = {},
           StageLink* link = nullptr,
           ActivationStore* store = nullptr)
      : model_(model),
        policies_(std::move(policies)),
        recompute_(std::move(recompute)),
        link_(link),
        store_(store),
        uploads_(model.device()) {}

  StepOutput train(const std::vector<Action>& actions, const StepInput& input);
  /// Runs all blocks without gradients; returns the objective's terms and outputs on the stage that
  /// has it. `context` selects Eval, Prefill or Decode. All stages call it with the same batch.
  /// `terms` receives one value for each loss term of this stage's blocks: the sum over the batch.
  nn::Outcome infer(const nn::Batch& batch,
                    nn::StepContext& context,
                    std::vector<TermValues>* terms = nullptr);
  /// Broadcasts `numel` fp32 values from the stage with the objective to every stage.
  at::Tensor from_objective(const at::Tensor& mine, std::int64_t numel) {
    return link_ == nullptr ? mine : link_->from_objective(mine, numel);
  }
  /// Takes part in the collectives of policies and blocks while other ranks run infer() and this
  /// one has no batch.
  void infer_nothing();
  [[nodiscard]] ModelInstance& model() { return model_; }
  StepTimes take_times() { return std::exchange(times_, {}); }

 private:
  /// Everything that the backward of one block needs.
  struct Saved {
    std::vector<at::Tensor> inputs;  ///< detached inputs that require grad
    nn::Outcome out;
    /// Only for a recomputed block, and for the objective, whose forward runs in backward.
    nn::Flow in;
    bool again = false;
    /// Numbers in the store of the tensors of `in.diff`, as far as they rest there.
    std::vector<std::optional<ActivationStore::Number>> stored;
  };
  /// Weight gradients of a block that are still to be computed or written.
  struct PutOff {
    int block = 0;
    std::vector<std::function<void()>> work;
    std::vector<std::pair<Param*, at::Tensor>> made;
  };
  struct BackwardOf {
    int block = 0;
    double loss_scale = 1.0;
    PutOff* put_off = nullptr;  ///< nullptr: weight gradients are computed and written at once
  };
  /// One micro-batch in one chunk.
  struct Pass {
    /// Receives that are posted but not yet waited for.
    std::optional<StageLink::Incoming> flow_coming, grads_coming;
    nn::Flow flow;             ///< the chunk's input; after its forward, its output
    std::vector<Saved> saved;  ///< one entry per block; without samples, per block that exchanges
    bool ran = false;          ///< its forward has run; `like` and `first` are known
    std::vector<at::Tensor> like;   ///< shapes of the gradient that the backward returns
    std::vector<at::Tensor> grads;  ///< gradients of the output; after the backward, of the input
    std::vector<at::Tensor> first;  ///< shapes of the input's gradients
    std::vector<PutOff> put_off;
  };
  struct Micro {
    nn::Batch batch;
    nn::StepContext context;
    std::vector<Pass> passes;  ///< one entry per chunk
    bool there = false;        ///< the batch is on the model's device
  };
  using Micros = std::vector<std::optional<Micro>>;
  /// A block's term of the loss whose sum the host has not read yet.
  struct PostedLoss {
    int block = 0, micro = 0;
    nn::Term term;
    double denominator = 0.0;
  };
  void begin(const std::vector<Action>& actions);
  void end();
  /// Runs fn between the policies' before() and after() of a block.
  void run_block(const Action& action, const BlockRun& run, const std::function<void()>& fn);
  void add_denominators(const nn::Batch& batch, std::vector<std::vector<double>>& all) const;
  void load(std::optional<Micro>& slot, int micro, const StepInput& input) const;
  void upload_next(const std::vector<Action>& actions, std::size_t from, Micros& micros);
  std::size_t post_ahead(const std::vector<Action>& actions, std::size_t from, Micros& micros);
  void post(const Action& action, Micro& micro);
  void act(const Action& action, Micro& micro, const StepInput& input, StepOutput& output);
  void forward(const Action& action, Micro& micro, const StepInput& input, StepOutput& output);
  void backward(const Action& action, Micro& micro, const StepInput& input, StepOutput& output);
  void backward_weights(const Action& action, Micro& micro, int num_micros);
  std::vector<at::Tensor> run_objective(
      const BackwardOf& of, Saved& saved, Micro& micro, const BlockRun& run, StepOutput& output);
  std::vector<at::Tensor> backward_block(const BackwardOf& of,
                                         Saved& saved,
                                         const std::vector<at::Tensor>& flow_grads,
                                         const std::vector<double>& denominators);
  void add_losses(const BlockRun& run, const nn::Outcome& out, const StepOutput& output);
  void settle_losses(int num_micros, StepOutput& output);
  void infer_chunk(const Action& action,
                   nn::Flow& flow,
                   nn::Outcome& out,
                   const nn::Batch& batch,
                   nn::StepContext& context,
                   std::vector<TermValues>* terms);
  [[nodiscard]] std::vector<Action> infer_actions() const;
  Pass* neighbour(Micro& micro, int part);
  [[nodiscard]] int part_of(const Action& action) const {
    return model_.layout().part(model_.stage(), action.chunk);
  }
  void share_layers(nn::StepContext& context) const;
  void idle(const Action& action, Micro& micro, const StepInput& input, StepOutput& output);
  void idle_forward(int block, Micro& micro, Pass& pass);
  void idle_backward(
      int block, const Action& action, Micro& micro, const StepInput& input, StepOutput& output);
  [[nodiscard]] bool runs_again(int block) const;
  void store_input(Saved& saved);
  void fetch_input(const Saved& saved);
  void take_input(Saved& saved);
  [[nodiscard]] bool is_objective(int block) const { return block + 1 == model_.num_blocks(); }

  ModelInstance& model_;
  std::vector<Policy*> policies_;
  Recompute recompute_;
  std::vector<PostedLoss> posted_losses_;
  StageLink* link_;
  ActivationStore* store_;
  BatchUploads uploads_;
  StepTimes times_;
};

}  // namespace tessera::parallel

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
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/pipeline/stage_link.h"

namespace tessera::parallel {

/// What a step is made of on this rank.
struct StepInput {
  std::int64_t step = 0;  ///< updates made before
  std::uint64_t seed = 0;
  int num_micros = 1;
  /// Gradients come out multiplied by it (fp16).
  double loss_scale = 1.0;
  /// Makes micro-batch m; called by Load.
  std::function<nn::Batch(int micro)> load;
  /// Turns this rank's denominators [num_micros][denominator] into the global ones; called once
  /// after the loads. Empty on stages without the objective, which need the global ones too.
  std::function<std::vector<double>(const std::vector<std::vector<double>>&)> global_denominators;
};
/// A term of the loss (nn::Term) that a block of the model gives, and its values in fp64.
struct TermValues {
  int block = 0;
  std::string name;
  int denominator = 0;
  double weight = 1.0;
  std::vector<double> values;  ///< without the weight
};
/// What came out, in fp64 and divided by the global denominators.
struct StepOutput {
  std::vector<double> block_losses;  ///< [num_micros][block of the model], 0 on other stages
  /// The terms that this rank saw, [num_micros] values each, in the order of the blocks.
  std::vector<TermValues> terms;
  std::vector<double> denominators;  ///< global
  /// The loss of each micro-batch, [num_micros]: its blocks' in their order. Several stages add
  /// block_losses first.
  [[nodiscard]] std::vector<double> losses(int num_micros) const;
};

/// Seconds spent in each part since the last reading.
struct StepTimes {
  double data = 0, forward = 0, backward = 0;
  double receive = 0;  ///< from other stages: waits and copies, inside of forward and backward
};

/// Which blocks keep only their input for the backward pass and run their forward again there. Bits
/// do not change: dropout is a function of counters, and no operation looks at the grad mode.
/// Source: Chen et al. 2016, "Training deep nets with sublinear memory cost"; selective:
/// Korthikanti et al. 2022.
struct Recompute {
  std::vector<bool> blocks;  ///< one a block, or empty; the objective is never run again
  bool regions = false;      ///< selective: the named regions of blocks (attention cores)
};

/// One stage's executor: runs what stands on it, and hands flows and gradients to and from the
/// other stages. What a pass needs of them is asked for before the pass in front of it runs, and
/// comes while that runs; it costs the memory of one message. Threads: the rank's own. Errors of
/// libtorch come out as Error{Bug} (or Memory) that name the block; an objective without a term of
/// the loss in training, and a term without its denominator, as Error{Shape}.
class Executor {
 public:
  /// `link` outlives this; needed where the model has several stages.
  Executor(ModelInstance& model,
           std::vector<Policy*> policies,
           Recompute recompute = {},
           StageLink* link = nullptr)
      : model_(model),
        policies_(std::move(policies)),
        recompute_(std::move(recompute)),
        link_(link) {}

  StepOutput train(const std::vector<Action>& actions, const StepInput& input);
  /// All blocks without gradients; the objective's terms and outputs, on the stage that has it.
  /// `context` chooses Eval, Prefill or Decode. All stages call it with the same batch. `terms`
  /// receives what every block on this stage adds to the loss: one value each, the sum over the
  /// batch.
  nn::Outcome infer(const nn::Batch& batch,
                    nn::StepContext& context,
                    std::vector<TermValues>* terms = nullptr);
  /// `numel` fp32 values that the objective gave, on every stage.
  at::Tensor from_objective(const at::Tensor& mine, std::int64_t numel) {
    return link_ == nullptr ? mine : link_->from_objective(mine, numel);
  }
  /// Takes part in what the policies do together, while other ranks infer() and this one has
  /// nothing.
  void infer_nothing();
  [[nodiscard]] ModelInstance& model() { return model_; }
  StepTimes take_times() { return std::exchange(times_, {}); }

 private:
  /// What the backward of one block needs.
  struct Saved {
    std::vector<at::Tensor> inputs;  ///< detached, those that require grad
    nn::Outcome out;
    nn::Flow in;  ///< of a block that is run again, and of the objective, which is not run before
    bool again = false;
  };
  /// Gradients of a block's weights that are still to be made or written.
  struct PutOff {
    int block = 0;
    std::vector<std::function<void()>> work;
    std::vector<std::pair<Param*, at::Tensor>> made;
  };
  struct BackwardOf {
    int block = 0;
    double loss_scale = 1.0;
    PutOff* put_off = nullptr;  ///< nullptr: weight gradients are made and written at once
  };
  /// One micro-batch in one chunk.
  struct Pass {
    /// Posted, and not waited for.
    std::optional<StageLink::Incoming> flow_coming, grads_coming;
    nn::Flow flow;                  ///< that it begins with, and after its forward ended with
    std::vector<Saved> saved;       ///< one a block
    bool ran = false;               ///< its forward; `like` and `first` are known
    std::vector<at::Tensor> like;   ///< shapes of the gradient that it ends with
    std::vector<at::Tensor> grads;  ///< of what it ends with, and after its backward begins with
    std::vector<at::Tensor> first;  ///< shapes of those
    std::vector<PutOff> put_off;
  };
  struct Micro {
    nn::Batch batch;
    nn::StepContext context;
    std::vector<Pass> passes;  ///< one a chunk
  };
  using Micros = std::vector<std::optional<Micro>>;
  /// A term of the loss that a block gave, whose sum the host has not read yet.
  struct PostedLoss {
    int block = 0, micro = 0;
    nn::Term term;
    double denominator = 0.0;
  };
  void begin(const std::vector<Action>& actions);
  void end();
  /// fn between what the policies do before and after a block.
  template <class Fn>
  void run_block(const Action& action, const BlockRun& run, Fn fn);
  void add_denominators(const nn::Batch& batch, std::vector<std::vector<double>>& all) const;
  void load(std::optional<Micro>& slot, int micro, const StepInput& input) const;
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
  void skip(const Action& action, int num_micros);
  [[nodiscard]] bool runs_again(int block) const;
  [[nodiscard]] bool is_objective(int block) const { return block + 1 == model_.num_blocks(); }

  ModelInstance& model_;
  std::vector<Policy*> policies_;
  Recompute recompute_;
  std::vector<PostedLoss> posted_losses_;
  StageLink* link_;
  StepTimes times_;
};

}  // namespace tessera::parallel

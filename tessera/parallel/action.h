// SPDX-License-Identifier: Apache-2.0
// A training step is a list of actions; policies act before and after each block of an action.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::parallel {

/// What an action does. Load: makes the micro-batch's tensors. Backward: gradients of inputs and
/// weights together; or BackwardInputs, and BackwardWeights any time after it. Stages send each
/// other the flow that a chunk begins with, and the gradient of the flow that it ended with.
enum class ActionKind : std::uint8_t {
  Load,
  Forward,
  Backward,
  BackwardInputs,
  BackwardWeights,
  ReceiveFlow,
  SendFlow,
  ReceiveGradient,
  SendGradient
};

/// The blocks of a chunk run in reverse.
constexpr bool is_backward(ActionKind kind) {
  return kind == ActionKind::Backward || kind == ActionKind::BackwardInputs ||
         kind == ActionKind::BackwardWeights;
}
/// The blocks of a chunk run, forward or backward. Other actions are quick, or wait.
constexpr bool is_pass(ActionKind kind) {
  return kind == ActionKind::Forward || is_backward(kind);
}
/// The blocks of a chunk run and read their weights.
constexpr bool reads_weights(ActionKind kind) {
  return kind == ActionKind::Forward || kind == ActionKind::Backward ||
         kind == ActionKind::BackwardInputs;
}
/// Gradients of weights are made.
constexpr bool makes_gradients(ActionKind kind) {
  return kind == ActionKind::Backward || kind == ActionKind::BackwardWeights;
}

struct Action {
  ActionKind kind;
  int chunk = 0;  ///< of this stage's model; 0 without interleaving
  int micro = 0;
  int peer = -1;  ///< stage of sends and receives; -1 for none
  bool operator==(const Action&) const = default;
};

/// One block of an action, as policies see it.
struct BlockRun {
  int block = 0;  ///< index in the model
  int micro = 0;
  int num_micros = 1;  ///< of this step
};

/// Acts between blocks: gather, reduce, prefetch, recompute, offload. Every block of a user gets
/// all of them.
class Policy {
 public:
  virtual ~Policy() = default;
  /// Before and after a list of actions: all that will run, in order.
  virtual void begin(std::span<const Action> /*actions*/) {}
  virtual void end() {}
  virtual void before(const Action& /*action*/, const BlockRun& /*run*/) {}
  virtual void after(const Action& /*action*/, const BlockRun& /*run*/) {}
};

/// Gradient accumulation: a pipeline with one stage. All loads first, because the loss's
/// denominators must be known before the first backward; then forward and backward of each
/// micro-batch in turn.
std::vector<Action> accumulation_schedule(int micro_batches);

}  // namespace tessera::parallel

// SPDX-License-Identifier: Apache-2.0
// A training step is a list of actions; policies act before and after each block of an action.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::parallel {

/// The kind of an action. Load creates the tensors of a micro-batch. Backward computes gradients of
/// inputs and weights together; alternatively BackwardInputs does the former, and BackwardWeights
/// the latter at any later time. Stages send each other the flow with which a chunk begins, and the
/// gradient of the flow with which it ended.
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

/// True if the blocks of a chunk run in reverse.
constexpr bool is_backward(ActionKind kind) {
  return kind == ActionKind::Backward || kind == ActionKind::BackwardInputs ||
         kind == ActionKind::BackwardWeights;
}
/// True if the blocks of a chunk run, forward or backward. Other actions are quick, or wait.
constexpr bool is_pass(ActionKind kind) {
  return kind == ActionKind::Forward || is_backward(kind);
}
/// True if the blocks of a chunk run and read their weights.
constexpr bool reads_weights(ActionKind kind) {
  return kind == ActionKind::Forward || kind == ActionKind::Backward ||
         kind == ActionKind::BackwardInputs;
}
/// True if the action computes gradients of weights.
constexpr bool makes_gradients(ActionKind kind) {
  return kind == ActionKind::Backward || kind == ActionKind::BackwardWeights;
}

struct Action {
  ActionKind kind;
  int chunk = 0;  ///< chunk of this stage's model; 0 without interleaving
  int micro = 0;
  int peer = -1;  ///< the other stage of a send or receive; -1 for none
  bool operator==(const Action&) const = default;
};

/// One block of an action, as policies see it.
struct BlockRun {
  int block = 0;  ///< index in the model
  int micro = 0;
  int num_micros = 1;  ///< in this step
};

/// Code that runs before and after each block of an action: gather, reduce, prefetch, recompute,
/// offload. Policies apply to every block, including blocks that users write.
class Policy {
 public:
  virtual ~Policy() = default;
  /// Called before and after a list of actions; begin() gets all actions that will run, in order.
  virtual void begin(std::span<const Action> /*actions*/) {}
  virtual void end() {}
  virtual void before(const Action& /*action*/, const BlockRun& /*run*/) {}
  virtual void after(const Action& /*action*/, const BlockRun& /*run*/) {}
};

/// Gradient accumulation: a pipeline with one stage. All loads come first, because the denominators
/// of the loss must be known before the first backward; then each micro-batch runs forward and
/// backward in turn.
std::vector<Action> accumulation_schedule(int micro_batches);

}  // namespace tessera::parallel

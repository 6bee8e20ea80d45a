// SPDX-License-Identifier: Apache-2.0
// The interface of a hook, which acts around the steps of a training. Hooks run in the order of
// their priorities, the smallest first.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/engine/engine.h"

namespace tessera::engine {

class Trainer;

/// Work that the configuration requests and only a hook can do: the sections `eval` and
/// `checkpoint`.
enum class Duty : std::uint8_t { Evaluate, Save };

/// An action around steps. Every rank runs every hook, so a hook may call collective methods of the
/// engine if it does so on all ranks. Only World::is_leader() should print or write files. Source
/// of points and priorities: Colossal-AI's trainer.
class Hook {
 public:
  /// Losses and metrics run first, schedules next, hooks that report or write last.
  static constexpr int kMetric = 0;
  static constexpr int kSchedule = 1;
  static constexpr int kReport = 10;

  explicit Hook(int priority) : priority_(priority) {}
  virtual ~Hook() = default;
  [[nodiscard]] int priority() const { return priority_; }
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// True if this hook does that work. Trainer::fit() warns of configured work that no hook does.
  [[nodiscard]] virtual bool does(Duty /*duty*/) const { return false; }

  virtual void after_hook_is_attached(Trainer& /*trainer*/) {}
  virtual void before_train(Trainer& /*trainer*/) {}
  virtual void after_train(Trainer& /*trainer*/) {}
  /// Called in pairs, also if training ends within an epoch.
  virtual void before_train_epoch(Trainer& /*trainer*/) {}
  virtual void after_train_epoch(Trainer& /*trainer*/) {}
  virtual void before_train_iter(Trainer& /*trainer*/) {}
  virtual void after_train_iter(Trainer& /*trainer*/, const StepReport& /*report*/) {}
  /// Called around one pass over the validation data, and within it around every round: each
  /// data-parallel rank computes one batch, or none in the last round.
  virtual void before_test(Trainer& /*trainer*/) {}
  virtual void before_test_epoch(Trainer& /*trainer*/) {}
  virtual void before_test_iter(Trainer& /*trainer*/) {}
  virtual void after_test_iter(Trainer& /*trainer*/) {}
  virtual void after_test_epoch(Trainer& /*trainer*/) {}
  virtual void after_test(Trainer& /*trainer*/, const EvalReport& /*report*/) {}
  /// Called after the test set was evaluated: at the end of the training, and at the times that
  /// eval.test_every sets.
  virtual void after_test_set(Trainer& /*trainer*/, const EvalReport& /*report*/) {}
  /// Called after the model has continued eval.prompt; the text is empty on ranks other than the
  /// leader.
  virtual void after_sample(Trainer& /*trainer*/, std::string_view /*text*/) {}

 private:
  int priority_;
};

}  // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/engine/hooks/hooks.h"

namespace tessera::engine {

Trainer::Trainer(Engine& engine, Console* console, std::filesystem::path run_dir)
    : engine_(engine), console_(console), run_dir_(std::move(run_dir)) {}

void Trainer::attach(std::unique_ptr<Hook> hook) {
  TESSERA_REQUIRE(running_ == 0,
                  Bug,
                  fmt::format("a hook attaches the hook \"{}\" while hooks run", hook->name()),
                  "attach hooks before Trainer::fit()");
  const auto at = std::upper_bound(
      hooks_.begin(), hooks_.end(), hook->priority(), [](int priority, const auto& other) {
        return priority < other->priority();
      });
  Hook& attached = **hooks_.insert(at, std::move(hook));
  attached.after_hook_is_attached(*this);
}

void Trainer::attach_defaults() {
  const planner::TrainConfig& config = engine_.plan().config;
  attach(std::make_unique<MetricByStepHook>());
  attach(std::make_unique<MetricByEpochHook>());
  attach(std::make_unique<ThroughputHook>(/*ignored_steps=*/2));
  if (config.eval.every > 0) attach(std::make_unique<EvaluationHook>(config.eval.every));
  if (!run_dir_.empty()) attach(std::make_unique<CheckpointHook>(config.checkpoint));
  attach(std::make_unique<ProgressHook>());
}

EvalReport Trainer::test() {
  engine_.pause_clock();
  each(&Hook::before_test);
  each(&Hook::before_test_epoch);
  last_eval_ = engine_.evaluate({.before = [this] { each(&Hook::before_test_iter); },
                                 .after = [this] { each(&Hook::after_test_iter); }});
  each(&Hook::after_test_epoch);
  each(&Hook::after_test, *last_eval_);
  engine_.resume_clock();
  return *last_eval_;
}

bool Trainer::try_to_write(const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::Io) throw;
    note_incomplete(error.what());
    log::warn("training goes on without this file: " + error.text());
    return false;
  }
}

StepReport Trainer::make_step() {
  try {
    return engine_.train_step();
  } catch (const Error& error) {
    // All ranks diverge alike: the checkpoint under way is one to go on from.
    if (error.kind() == Error::Kind::Numeric && engine_.saving()) {
      try {
        engine_.finish_save();
      } catch (const Error& other) {
        if (engine_.world().is_leader()) log::warn("the last checkpoint is lost: " + other.text());
      }
    }
    throw;
  }
}

int Trainer::fit() {
  each(&Hook::before_train);
  bool epoch_open = false;
  while (!stop_ && engine_.step() < engine_.max_steps()) {
    if (!epoch_open) each(&Hook::before_train_epoch);
    epoch_open = true;
    each(&Hook::before_train_iter);
    last_ = make_step();
    if (last_->stop_requested) {
      stop_signal_ = last_->stop_signal;
      stop_ = true;
    }
    each(&Hook::after_train_iter, *last_);
    if (last_->epoch_ended) {
      each(&Hook::after_train_epoch);
      epoch_open = false;
    }
  }
  if (epoch_open) each(&Hook::after_train_epoch);
  each(&Hook::after_train);
  engine_.finish();
  // Nobody leaves while a peer may still read its memory.
  comm::World& world = engine_.world();
  world.transport().barrier(world.everyone(), TESSERA_HERE("end of training"))->wait();
  return exit_code();
}

int Trainer::exit_code() const {
  if (stop_signal_ != 0) {
    const bool saved = saved_step_ == engine_.step();
    if (stop_signal_ == SIGINT) return kExitInterrupted;
    return saved ? kExitStopped : kExitTerminated;
  }
  return incomplete_.empty() ? kExitOk : kExitIncomplete;
}

}  // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer.h"

#include <algorithm>
#include <csignal>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"

namespace tessera::engine {
namespace {

/// True if the section's settings of when to save and what to keep differ from its defaults.
bool asks_for_checkpoints(const checkpoint::Options& options) {
  const checkpoint::Options defaults;
  return options.when().any() ||
         (options.interval_s() && options.interval_s() != defaults.interval_s()) ||
         options.keeps_best() || options.keep != defaults.keep;
}

}  // namespace

Trainer::Trainer(Engine& engine, Console* console, std::filesystem::path run_dir)
    : engine_(engine), console_(console), run_dir_(std::move(run_dir)) {
  std::error_code ignored;
  TESSERA_REQUIRE(run_dir_.empty() || std::filesystem::is_directory(run_dir_, ignored),
                  Io,
                  fmt::format("the run folder {} does not exist", run_dir_.string()),
                  "create it before the ranks start, with std::filesystem::create_directories(), "
                  "or give the Trainer no folder");
}

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
    // All ranks diverge at once, so the checkpoint being written is fit for resuming.
    if (error.kind() == Error::Kind::Numeric && engine_.saver().saving()) {
      try {
        if (engine_.saver().copying()) {
          engine_.saver().finish_copy();
        } else {
          engine_.saver().finish();
        }
      } catch (const Error& other) {
        if (engine_.world().is_leader()) log::warn("the last checkpoint is lost: " + other.text());
      }
    }
    throw;
  }
}

bool Trainer::has_hook_for(Duty duty) const {
  return std::any_of(
      hooks_.begin(), hooks_.end(), [duty](const auto& hook) { return hook->does(duty); });
}

/// Warns of evaluations and checkpoints that the configuration requests and no hook makes.
void Trainer::warn_of_unserved() {
  if (warned_ || !engine_.world().is_leader()) return;
  warned_ = true;
  const planner::RunPlan& run = engine_.plan().run();
  if (run.eval.when().any() && !has_hook_for(Duty::Evaluate)) {
    log::warn(
        fmt::format("eval.every is {}, but no hook evaluates\n  fix: call "
                    "engine::attach_defaults(trainer), or return true from does(Duty::Evaluate) of "
                    "the hook that calls Trainer::test()",
                    run.eval.every.dump()));
  }
  if (asks_for_checkpoints(run.checkpoint) && !has_hook_for(Duty::Save)) {
    log::warn(
        "checkpoint is configured, but no hook saves\n  fix: give the Trainer a run folder and "
        "call engine::attach_defaults(trainer), or return true from does(Duty::Save) of the hook "
        "that calls Engine::save()");
  }
}

int Trainer::fit() {
  begin();
  while (step()) {
  }
  return finish();
}

void Trainer::begin() {
  warn_of_unserved();
  each(&Hook::before_train);
}

bool Trainer::step() {
  const auto more = [this] { return !stop_ && engine_.step() < engine_.max_steps(); };
  if (!more()) return false;
  if (!epoch_open_) each(&Hook::before_train_epoch);
  epoch_open_ = true;
  each(&Hook::before_train_iter);
  last_ = make_step();
  if (last_->stop_requested) {
    stop_signal_ = last_->stop_signal;
    stop_ = true;
  }
  each(&Hook::after_train_iter, *last_);
  if (last_->epoch_ended) {
    each(&Hook::after_train_epoch);
    epoch_open_ = false;
  }
  return more();
}

int Trainer::finish() {
  if (epoch_open_) each(&Hook::after_train_epoch);
  epoch_open_ = false;
  each(&Hook::after_train);
  engine_.finish();
  // A rank must not end while a peer may still read its memory.
  comm::World& world = engine_.world();
  world.barrier(TESSERA_HERE("end of training"));
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

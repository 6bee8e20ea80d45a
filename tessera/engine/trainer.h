// SPDX-License-Identifier: Apache-2.0
// The loop: steps until the plan is fulfilled or somebody asks to stop, with hooks around them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tessera/engine/console.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/hook.h"

namespace tessera::engine {

/// The last of the four steps. Threads: the rank's own.
class Trainer {
 public:
  /// `console` may be null: then nothing is said. `run_dir` empty: no hook writes files.
  explicit Trainer(Engine& engine, Console* console = nullptr, std::filesystem::path run_dir = {});

  /// Before fit() or after it: Error{Bug} while hooks run.
  void attach(std::unique_ptr<Hook> hook);
  /// The hooks that `tessera train` uses, as the plan's configuration asks for them.
  void attach_defaults();
  /// Trains to the plan's max_steps. Returns the exit code: 0, 9 (something asked for was not
  /// done), 75 or 130 (stopped and saved), 143 (stopped, nothing saved).
  int fit();

  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] Console* console() { return engine_.world().is_leader() ? console_ : nullptr; }
  [[nodiscard]] const std::filesystem::path& run_dir() const { return run_dir_; }
  [[nodiscard]] const std::optional<StepReport>& last() const { return last_; }
  [[nodiscard]] const std::optional<EvalReport>& last_eval() const { return last_eval_; }
  /// Evaluates now and tells every hook. Error{Config} without validation data.
  EvalReport test();
  /// All ranks alike: the loop ends after this step.
  void stop() { stop_ = true; }
  /// Something asked for could not be done, but training goes on: the exit code becomes 9 and the
  /// reason is told at the end.
  void note_incomplete(std::string reason) { incomplete_.push_back(std::move(reason)); }
  /// Runs `write`; when the disk refuses, says so once and goes on: training is worth more than a
  /// file. Returns whether it was written.
  bool try_to_write(const std::function<void()>& write);
  [[nodiscard]] const std::vector<std::string>& incomplete() const { return incomplete_; }
  /// A checkpoint of this step stands on disk.
  void note_saved(std::int64_t step) { saved_step_ = step; }
  [[nodiscard]] std::int64_t saved_step() const { return saved_step_; }
  /// The signal that ended the loop early, or 0.
  [[nodiscard]] int stop_signal() const { return stop_signal_; }

 private:
  /// Counts while it lives, whatever the hooks throw.
  class Calling {
   public:
    explicit Calling(int& count) : count_(count) { ++count_; }
    ~Calling() { --count_; }
    Calling(const Calling&) = delete;
    Calling& operator=(const Calling&) = delete;

   private:
    int& count_;
  };
  /// Calls a point of every hook, in their order.
  template <class... Args>
  void each(void (Hook::*point)(Trainer&, Args...), std::type_identity_t<Args>... args) {
    const Calling calling(running_);
    for (const auto& hook : hooks_)
      ((*hook).*point)(*this, args...);
  }
  StepReport make_step();
  [[nodiscard]] int exit_code() const;

  Engine& engine_;
  Console* console_;
  std::filesystem::path run_dir_;
  std::vector<std::unique_ptr<Hook>> hooks_;
  int running_ = 0;  ///< points of hooks that are being called, one inside of the other
  std::optional<StepReport> last_;
  std::optional<EvalReport> last_eval_;
  std::vector<std::string> incomplete_;
  std::int64_t saved_step_ = -1;
  int stop_signal_ = 0;
  bool stop_ = false;
};

}  // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
// The training loop: runs steps until the plan is done or a stop is requested, and calls hooks
// around them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/engine/console.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/hook.h"

namespace tessera::engine {

/// The last of the four steps. Used only on the rank's own thread.
class Trainer {
 public:
  /// `console` may be null: then nothing is printed. If `run_dir` is empty, no hook writes files.
  /// Throws Error{Io} if that folder does not exist.
  explicit Trainer(Engine& engine, Console* console = nullptr, std::filesystem::path run_dir = {});

  /// Call before or after fit(); throws Error{Bug} while hooks run.
  void attach(std::unique_ptr<Hook> hook);
  /// Trains to the plan's max_steps; warns once if the configuration requests evaluations or
  /// checkpoints and no hook makes them. Returns the exit code: 0, 9 (something requested was not
  /// done), 75 or 130 (stopped and saved), 143 (stopped, nothing saved).
  int fit();
  /// The parts of fit(), for a caller whose loop makes the steps: begin() once, then step() until
  /// it returns false, because the training is done or was asked to stop, and finish(), which
  /// returns the exit code. A caller may also finish earlier.
  void begin();
  bool step();
  int finish();

  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] Console* console() { return engine_.world().is_leader() ? console_ : nullptr; }
  [[nodiscard]] const std::filesystem::path& run_dir() const { return run_dir_; }
  [[nodiscard]] const std::optional<StepReport>& last() const { return last_; }
  [[nodiscard]] const std::optional<EvalReport>& last_eval() const { return last_eval_; }
  /// Evaluates now and calls the hooks. Error{Config} without validation data.
  EvalReport test();
  /// Calls the hooks' after_test_set() and after_sample().
  void tell_test_set(const EvalReport& report) { each(&Hook::after_test_set, report); }
  void tell_sample(std::string_view text) { each(&Hook::after_sample, text); }
  /// Ends the loop after this step. Call it on all ranks.
  void stop() { stop_ = true; }
  /// True if the loop ends after this step although more are planned.
  [[nodiscard]] bool stopping() const { return stop_; }
  /// Ends a training whose evaluations show no gain; this is a success, and the reason is printed
  /// at the end.
  void stop_early(std::string reason) {
    stop_ = true;
    early_stop_ = std::move(reason);
  }
  /// The reason why the training ended before its last step; empty if it did not.
  [[nodiscard]] const std::string& early_stop() const { return early_stop_; }
  /// Records that something requested could not be done although training continues: the exit code
  /// becomes 9, and the reason is reported at the end.
  void note_incomplete(std::string reason) { incomplete_.push_back(std::move(reason)); }
  /// Runs `write`. Converts an Error{Io} to a warning and a note_incomplete(), because the training
  /// is worth more than a file. Returns whether it was written.
  bool try_to_write(const std::function<void()>& write);
  [[nodiscard]] const std::vector<std::string>& incomplete() const { return incomplete_; }
  /// Records that a checkpoint of this step is on disk.
  void note_saved(std::int64_t step) { saved_step_ = step; }
  [[nodiscard]] std::int64_t saved_step() const { return saved_step_; }
  /// The signal that ended the loop early, or 0.
  [[nodiscard]] int stop_signal() const { return stop_signal_; }

 private:
  /// Counts a running call of hooks; exception-safe.
  class Calling {
   public:
    explicit Calling(int& count) : count_(count) { ++count_; }
    ~Calling() { --count_; }
    Calling(const Calling&) = delete;
    Calling& operator=(const Calling&) = delete;

   private:
    int& count_;
  };
  /// Calls one method of every hook, in the order of the hooks.
  template <class... Args>
  void each(void (Hook::*point)(Trainer&, Args...), std::type_identity_t<Args>... args) {
    const Calling calling(running_);
    const comm::ActivityScope reports(engine_.world(), Activity::Report);
    for (const auto& hook : hooks_)
      ((*hook).*point)(*this, args...);
  }
  StepReport make_step();
  [[nodiscard]] bool has_hook_for(Duty duty) const;
  void warn_of_unserved();
  [[nodiscard]] int exit_code() const;

  Engine& engine_;
  Console* console_;
  std::filesystem::path run_dir_;
  std::vector<std::unique_ptr<Hook>> hooks_;
  int running_ = 0;  ///< nested calls of hooks that are running
  std::optional<StepReport> last_;
  std::optional<EvalReport> last_eval_;
  std::vector<std::string> incomplete_;
  std::string early_stop_;
  std::int64_t saved_step_ = -1;
  int stop_signal_ = 0;
  bool stop_ = false;
  bool warned_ = false;
  bool epoch_open_ = false;
};

}  // namespace tessera::engine

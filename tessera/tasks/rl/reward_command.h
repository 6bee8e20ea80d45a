// SPDX-License-Identifier: Apache-2.0
// A program that rewards completions: it reads a JSON line for each on its standard input and
// answers with one on its standard output.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tessera/tasks/rl/reward.h"

namespace tessera::tasks {

/// Runs the program of a reward, without a shell, and restarts it if it ends or does not answer in
/// time. Threads: one at a time.
class RewardCommand {
 public:
  explicit RewardCommand(CommandRewardOptions options);
  ~RewardCommand();
  RewardCommand(const RewardCommand&) = delete;
  RewardCommand& operator=(const RewardCommand&) = delete;
  /// Returns the rewards in the order of the answers; NaN if the program answers null. Its answers
  /// may be in any order; `poll` is called at least once a second. Throws Error{Environment} if the
  /// program cannot be started, or still fails after the restarts, and Error{Data} for an invalid
  /// answer; both name the record.
  std::vector<double> of(std::span<const Answer> answers, const std::function<void()>& poll = {});

 private:
  class Child;
  CommandRewardOptions options_;
  std::unique_ptr<Child> child_;
};

}  // namespace tessera::tasks

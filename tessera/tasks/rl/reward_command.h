// SPDX-License-Identifier: Apache-2.0
// A program that rewards completions: it reads a line of JSON for each on its standard input and
// answers with one on its standard output.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tessera/tasks/rl/reward.h"

namespace tessera::tasks {

/// Runs the program of a reward, without a shell, and starts it again where it ends or falls
/// silent. Threads: one at a time.
class RewardCommand {
 public:
  explicit RewardCommand(CommandRewardOptions options);
  ~RewardCommand();
  RewardCommand(const RewardCommand&) = delete;
  RewardCommand& operator=(const RewardCommand&) = delete;
  /// The rewards in the order of the answers; NaN where the program says null. Answers may come in
  /// any order; `poll` is called at least once a second. Error{Environment} where the program
  /// cannot be started, or goes on failing after the restarts; Error{Data} for what is no answer;
  /// both name the record.
  std::vector<double> of(std::span<const Answer> answers, const std::function<void()>& poll = {});

 private:
  class Child;
  CommandRewardOptions options_;
  std::unique_ptr<Child> child_;
};

}  // namespace tessera::tasks

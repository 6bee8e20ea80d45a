// SPDX-License-Identifier: Apache-2.0
// Detects and describes problems of a rollout.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/engine/loss_terms.h"

namespace tessera::rlhf {

/// An alarm has an effect when it has held for this number of rollouts in a row.
inline constexpr int kRolloutsOfAlarm = 10;

/// The mean length of the completions of the first kRolloutsOfAlarm rollouts, with which later ones
/// are compared.
class FirstRollouts {
 public:
  FirstRollouts() = default;
  /// `state`: of state(). Throws Error{Format}.
  explicit FirstRollouts(const json::Value& state);
  /// Counts a rollout, unless there are enough already. `metrics`: report_of().
  void add(const engine::Metrics& metrics);
  [[nodiscard]] bool complete() const { return rollouts_ >= kRolloutsOfAlarm; }
  [[nodiscard]] double length() const { return length_ / static_cast<double>(rollouts_); }
  [[nodiscard]] double truncated() const { return truncated_ / static_cast<double>(rollouts_); }
  [[nodiscard]] json::Value state() const;

 private:
  std::int64_t rollouts_ = 0;
  double length_ = 0, truncated_ = 0;  ///< sums
};

struct Alarm {
  std::string name;  ///< "equal_groups"
  std::string what;  ///< a sentence, with up to three completions
  std::string fix;
};
/// "equal_groups": for nearly all prompts all completions have the same reward, so that nothing is
/// learned; "truncated": nearly all completions have no end; "empty": most completions consist only
/// of the end token; "repeating": completions consist of a few sequences of tokens; "collapsed":
/// every token is nearly certain; "far": the divergence from the reference is implausibly large;
/// "length": completions have become four times as long or short as those of the first rollouts. A
/// policy that begins with truncated completions and learns to end them raises none.
/// `metrics`: report_of(); `texts`: those of the completions; `first`: incomplete if unknown.
std::vector<Alarm> alarms_of(const engine::Metrics& metrics,
                             std::span<const std::string> texts,
                             const FirstRollouts& first = {});

}  // namespace tessera::rlhf

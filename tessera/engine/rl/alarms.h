// SPDX-License-Identifier: Apache-2.0
// Detects and describes problems of a rollout.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/engine/loss_terms.h"

namespace tessera::engine::rl {

/// An alarm has an effect when it has held for this number of rollouts in a row.
inline constexpr int kRolloutsOfAlarm = 10;

struct Alarm {
  std::string name;  ///< "equal_groups"
  std::string what;  ///< a sentence, with up to three completions
  std::string fix;
};
/// "equal_groups": for nearly all prompts all completions have the same reward, so that nothing is
/// learned; "truncated": nearly all completions have no end; "empty": most completions consist only
/// of the end token; "repeating": completions consist of a few sequences of tokens; "collapsed":
/// every token is nearly certain; "far": the divergence from the reference is implausibly large.
/// `metrics`: report_of(); `texts`: those of the completions.
std::vector<Alarm> alarms_of(const Metrics& metrics, std::span<const std::string> texts);

}  // namespace tessera::engine::rl

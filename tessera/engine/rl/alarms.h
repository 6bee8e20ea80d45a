// SPDX-License-Identifier: Apache-2.0
// What is wrong with a rollout, in words.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/engine/loss_terms.h"

namespace tessera::engine::rl {

struct Alarm {
  std::string name;  ///< "equal_groups"
  std::string what;  ///< a sentence, with up to three completions
  std::string fix;
};
/// "equal_groups": nearly all prompts whose completions earn the same, of which nothing is learned;
/// "truncated": nearly all completions without an end; "empty": most completions without a token
/// but the end; "collapsed": every token is nearly certain; "far": the divergence from the
/// reference is larger than any text's is worth. `metrics`: report_of(); `texts`: of the
/// completions.
std::vector<Alarm> alarms_of(const Metrics& metrics, std::span<const std::string> texts);

}  // namespace tessera::engine::rl

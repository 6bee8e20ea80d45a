// SPDX-License-Identifier: Apache-2.0
// Says in words what the files of a run of the task rl show.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::rlhf {

/// Returns sentences about the run: the course of the reward, the alarms of its last ten recorded
/// steps with what to do about each, the times that it went back, and the tests of its reward
/// models and of its end token. Empty if the folder has no ledger of rollouts. Reads metrics.jsonl,
/// rollouts.jsonl (its last rollout), roll_backs.jsonl, reward_models.json and end_token.json.
/// Throws Error{Format} for invalid ones, and Error{Io}.
std::vector<std::string> diagnosis_of(const std::filesystem::path& run);

}  // namespace tessera::rlhf

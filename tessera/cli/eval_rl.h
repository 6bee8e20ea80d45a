// SPDX-License-Identifier: Apache-2.0
// tessera eval of a run of the task rl: held-out prompts are answered, and the answers rewarded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tessera/cli/ranks.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/open_model.h"

namespace tessera::cli {

/// Answers the first `prompts` prompts of `held_out`, or all of them, as the run's rl.validation
/// says, and prints reward, length and the other metrics of a rollout. `held_out` was opened by the
/// run's task. Returns the exit code. Throws Error{Config} for --tensor.
int eval_rl(const engine::OpenModel& found,
            const std::shared_ptr<const data::Dataset>& held_out,
            std::optional<std::int64_t> prompts,
            const RankFlags& ranks,
            bool as_json);

}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
// REINFORCE with the mean reward of the group's other completions as the baseline (Ahmadian et al.
// 2024).
#include "tessera/tasks/rl/options.h"

namespace tessera::tasks {
namespace {

TESSERA_RL_ALGORITHM(
    rloo,
    "rloo",
    {"the mean of the group's others as the baseline, whole completions as actions",
     [](RlOptions& options) {
       options.algorithm = "rloo";
       options.samples = 2;
       options.advantage.estimator = "leave_one_out";
       options.loss.ratio = "sum";
       options.kl = {.coefficient = 0.05, .estimator = "k1", .place = KlPlace::Reward};
     }});

}  // namespace
}  // namespace tessera::tasks

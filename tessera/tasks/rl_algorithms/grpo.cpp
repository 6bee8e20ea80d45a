// SPDX-License-Identifier: Apache-2.0
// Group-relative policy optimization (Shao et al. 2024) and variants with other normalizations: Dr.
// GRPO (Liu et al. 2025), DAPO (Yu et al. 2025), GSPO (Zheng et al. 2025).
#include "tessera/tasks/rl/options.h"

namespace tessera::tasks {
namespace {

TESSERA_RL_ALGORITHM(grpo,
                     "grpo",
                     {"the mean of a group as the baseline, divided by its deviation",
                      [](RlOptions& options) { options.algorithm = "grpo"; }});
TESSERA_RL_ALGORITHM(dr_grpo,
                     "dr_grpo",
                     {"the same without the deviation, and losses divided by the largest length",
                      [](RlOptions& options) {
                        options.algorithm = "dr_grpo";
                        options.advantage.scale = "none";
                        options.loss.type = "dr_grpo";
                      }});
TESSERA_RL_ALGORITHM(dapo,
                     "dapo",
                     {"a higher upper clip, and the mean over all tokens", [](RlOptions& options) {
                        options.algorithm = "dapo";
                        options.loss.type = "dapo";
                        options.loss.epsilon_high = 0.28;
                      }});
TESSERA_RL_ALGORITHM(gspo,
                     "gspo",
                     {"one ratio for each completion, the mean of its tokens' log-ratios",
                      [](RlOptions& options) {
                        options.algorithm = "gspo";
                        options.loss.ratio = "mean";
                        options.loss.epsilon_low = 3e-4;
                        options.loss.epsilon_high = 4e-4;
                      }});

}  // namespace
}  // namespace tessera::tasks

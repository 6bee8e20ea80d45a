// SPDX-License-Identifier: Apache-2.0
// REINFORCE++ (Hu 2025): rewards after each token, whitened over the rollout.
#include "tessera/tasks/rl/options.h"

namespace tessera::tasks {
namespace {

TESSERA_RL_ALGORITHM(reinforce_plus_plus,
                     "reinforce++",
                     {"the rewards behind each token, whitened over the rollout",
                      [](RlOptions& options) {
                        options.algorithm = "reinforce++";
                        options.samples = 1;
                        options.advantage.estimator = "to_go";
                        options.advantage.whiten = true;
                        options.loss.type = "dapo";
                        options.kl = {
                            .coefficient = 0.01, .estimator = "k1", .place = KlPlace::Reward};
                      }});

}  // namespace
}  // namespace tessera::tasks

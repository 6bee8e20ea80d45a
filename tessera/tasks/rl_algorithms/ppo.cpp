// SPDX-License-Identifier: Apache-2.0
// Proximal policy optimisation with a critic (Schulman et al. 2017; Ziegler et al. 2019).
#include "tessera/tasks/rl/options.h"

namespace tessera::tasks {
namespace {

TESSERA_RL_ALGORITHM(ppo,
                     "ppo",
                     {"advantages by a critic, whitened over the rollout", [](RlOptions& options) {
                        options.algorithm = "ppo";
                        options.samples = 1;
                        options.advantage.estimator = "gae";
                        options.advantage.whiten = true;
                        options.loss.type = "dapo";
                        options.kl = {
                            .coefficient = 0.05, .estimator = "k1", .place = KlPlace::Reward};
                      }});

}  // namespace
}  // namespace tessera::tasks

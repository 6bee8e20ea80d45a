// SPDX-License-Identifier: Apache-2.0
// Algorithms as other programs compute them by default. Sources: the defaults of DeepSpeed-Chat,
// TRL 1.16 and verl, and Yu et al. 2025.
#include "tessera/tasks/rl/options.h"

namespace tessera::tasks {
namespace {

TESSERA_RL_PRESET(dschat_ppo,
                  "dschat:ppo",
                  {"DeepSpeed-Chat's: the score clipped at 5, no whitening",
                   [](RlOptions& options) {
                     options.algorithm = "ppo";
                     options.samples = 1;
                     options.advantage = {.estimator = "dschat_gae", .clip_reward = 5.0};
                     options.loss.type = "dapo";
                     options.kl = {.coefficient = 0.1, .estimator = "k1", .place = KlPlace::Reward};
                     options.critic.clip_range = 0.2;
                   }});
TESSERA_RL_PRESET(trl_grpo,
                  "trl:grpo",
                  {"TRL's: the mean over all tokens, no divergence", [](RlOptions& options) {
                     options.algorithm = "grpo";
                     options.samples = 8;
                     options.advantage = {.scale = "group", .epsilon = 1e-4};
                     options.loss.type = "dapo";
                   }});
TESSERA_RL_PRESET(verl_grpo,
                  "verl:grpo",
                  {"verl's: the mean over all tokens, ratios of negative advantages below 3, the "
                   "divergence in the loss",
                   [](RlOptions& options) {
                     options.algorithm = "grpo";
                     options.advantage = {.scale = "group", .epsilon = 1e-6};
                     options.loss.type = "dapo";
                     options.loss.delta = 3.0;
                     options.kl = {.coefficient = 0.001, .estimator = "k3", .place = KlPlace::Loss};
                   }});
TESSERA_RL_PRESET(dapo,
                  "dapo",
                  {"the paper's: a higher upper clip, the mean over all tokens, 16 completions, "
                   "groups that teach nothing are replaced up to 10 times",
                   [](RlOptions& options) {
                     options.algorithm = "dapo";
                     options.samples = 16;
                     options.dynamic_rounds = 10;
                     options.loss.type = "dapo";
                     options.loss.epsilon_high = 0.28;
                   }});

}  // namespace
}  // namespace tessera::tasks

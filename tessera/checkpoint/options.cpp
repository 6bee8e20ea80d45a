// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/options.h"

namespace tessera::checkpoint {

void Options::describe(config::Fields& f) {
  f.field("every",
          every,
          {.text = "Write a checkpoint every N steps, or after every share of them (0.1), or with "
                   "\"epoch\" at the end of every epoch; 0 disables this.",
           .unit = "steps",
           .min = 0,
           .default_text = "see every_minutes",
           .type = "number or \"epoch\""});
  f.field("every_minutes",
          every_minutes,
          {.text = "Write a checkpoint when this many minutes have passed since the last one, in "
                   "addition to those of every; 0 disables this.",
           .unit = "minutes",
           .min = 0,
           .max = 1e6,
           .default_text = "15 if every is not given, else 0"});
  f.field("keep",
          keep,
          {.text = "Number of newest checkpoints to keep.",
           .unit = "checkpoints",
           .min = 1,
           .max = 1e6});
  f.field(
      "best",
      best,
      {.text = "Write a checkpoint whenever an evaluation is the best so far by eval.best, keep "
               "it in addition to the newest ones, and name it in checkpoints/best. With every "
               "0 and final false, nothing else is saved.",
       .default_text = "true if eval.best or eval.patience is given, else false"});
  f.field("final", final, {.text = "Write a checkpoint at the end of training."});
  f.field("save_on_signal",
          save_on_signal,
          {.text = "Write a checkpoint before a signal (SIGTERM, Ctrl-C) ends the training."});
  f.field("async",
          async,
          {.text = "Write checkpoints in the background while training continues. Data that is not "
                   "written yet is copied before the next update changes it. The save at the end "
                   "or at a signal is synchronous."});
  f.field("load_universal",
          load_universal,
          {.text = "If --resume names a DeepSpeed folder, load its universal checkpoint "
                   "(latest_universal); it is an error if there is none."});
  f.field("use_node_local_storage",
          use_node_local_storage,
          {.text = "For hosts that share no disk: each host saves the pieces of its ranks under "
                   "its own run.dir, as a part of the checkpoint. tessera checkpoint merge joins "
                   "the parts. With a single host the part is the whole checkpoint."});
  f.field(
      "peer_copies",
      peer_copies,
      {.text = "1: every host also keeps the training state of its ranks and of the ranks of the "
               "host before it in memory, so that a job of several hosts goes on from there "
               "after a loss (run.min_hosts, run.restarts), without a disk.",
       .unit = "hosts",
       .min = 0,
       .max = 1});
  f.field("peer_every",
          peer_every,
          {.text = "Number of steps between two copies of peer_copies. A copy is made in the "
                   "background; the next one waits for it.",
           .unit = "steps",
           .min = 1,
           .max = 1e9});
}

}  // namespace tessera::checkpoint

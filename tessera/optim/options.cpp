// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/options.h"

namespace tessera::optim {

void UnfreezingOptions::describe(config::Fields& f) {
  f.field("every",
          every,
          {.text = "Number of steps, \"epoch\" or \"N epochs\" until the next layers are trained "
                   "too. At first only the objective and what follows the last layer are trained.",
           .default_text = "null (off)",
           .type = "integer or string"});
  f.field("layers",
          layers,
          {.text = "Number of layers that begin to be trained each time. What precedes the first "
                   "layer begins after it.",
           .min = 1});
}

void OptimizerOptions::describe(config::Fields& f) {
  f.field("type", type, {.text = "Name of the optimizer (case-insensitive)."});
  f.field("params",
          params,
          {.text = "Parameters of the optimizer; for AdamW: lr, betas, eps, weight_decay.",
           .default_text = "lr 1e-3, betas [0.9, 0.999], eps 1e-8, weight_decay 0.01"});
  f.section("weight_decay_schedule",
            weight_decay_schedule,
            "Schedule of the weight decay from start to end.");
  f.field("groups",
          groups,
          {.text = "Parameter groups, a list of {pattern, lr, weight_decay, frozen, frozen_until, "
                   "frozen_from}: a separate learning rate or weight decay, or no training (at "
                   "all, until or from a number of steps or \"N epochs\"), for parameters whose "
                   "names match the regular expression. The first match applies.",
           .default_text = "none",
           .type = "list of objects"});
  f.field("trained",
          trained,
          {.text = "Regular expressions of names as in Hugging Face's files: tensors in whose name "
                   "none of them is found are frozen.",
           .default_text = "none (all are trained)",
           .type = "list of strings"});
  f.field(
      "decay_all",
      decay_all,
      {.text =
           "Apply weight decay to all parameters, not only to those of two or more dimensions."});
  f.field(
      "layer_decay",
      layer_decay,
      {.text = "Factor of the learning rate from each layer to the one below it, as in ELECTRA: "
               "of n layers, layer i from 0 learns at lr x layer_decay^(n + 1 - i), the "
               "embedding at lr x layer_decay^(n + 2), the objective at lr. Groups with an lr "
               "keep it.",
       .min = 0,
       .max = 1,
       .above_min = true});
  f.section("gradual_unfreezing",
            gradual_unfreezing,
            "Training from the last layer to the first, as in ULMFiT. Groups with frozen_until or "
            "frozen_from keep their schedule.");
}

void SchedulerOptions::describe(config::Fields& f) {
  f.field("type",
          type,
          {.text = "Name of the learning-rate schedule (case-insensitive).",
           .default_text = "constant"});
  f.field("params",
          params,
          {.text = "Parameters of the schedule, such as warmup_num_steps.", .default_text = "{}"});
  f.choice(
      "on_resume",
      on_resume,
      kOnResume,
      {.text = "What tessera train does with the learning-rate curve if it resumes with another "
               "schedule or length: keep (the type, parameters and length of the saved run; "
               "optimizer.params.lr is still the given one), or restart (the given schedule "
               "begins again at the next step and ends at trainer.max_steps).",
       .default_text = "the given schedule, as if it had been used from the first step"});
}

}  // namespace tessera::optim

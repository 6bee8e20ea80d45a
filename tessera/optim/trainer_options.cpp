// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/trainer_options.h"

#include <array>

#include "tessera/config/choices.h"

namespace tessera::optim {
namespace {

constexpr double kMostLength = 1e12;  // a larger one is a typing mistake
constexpr auto kOnNonfinite = std::to_array<config::Named<OnNonfinite>>(
    {{OnNonfinite::Stop, "stop"}, {OnNonfinite::Skip, "skip"}});

}  // namespace

void TrainerOptions::describe(config::Fields& f) {
  f.field("max_steps",
          max_steps,
          {.text = "Stop after this number of optimizer updates.",
           .unit = "steps",
           .min = 1,
           .max = kMostLength,
           .default_text = "follows from trainer.epochs"});
  f.field("epochs",
          epochs,
          {.text = "Stop after this number of passes over the training data, or at max_steps, "
                   "whichever comes first.",
           .unit = "epochs",
           .min = 0,
           .max = kMostLength,
           .above_min = true,
           .default_text = "1 if max_steps is not given"});
  f.field("seed",
          seed,
          {.text = "Random seed for initial weights, order of samples and dropout.", .min = 0});
  f.choice("on_nonfinite",
           on_nonfinite,
           kOnNonfinite,
           {.text = "Action on a non-finite loss or gradient: stop the run, or skip the update."});
  f.field("clip_after_warmup",
          clip_after_warmup,
          {.text = "Clip gradients only after the warm-up of the schedule."});
  f.section("ema", ema, "A moving average of the weights.");
}

}  // namespace tessera::optim

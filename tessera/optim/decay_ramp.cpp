// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/decay_ramp.h"

#include <array>

#include <fmt/format.h>

#include "tessera/optim/curve.h"

namespace tessera::optim {
namespace {

constexpr auto kDecayRampStyles = std::to_array<config::Named<DecayRampOptions::Style>>(
    {{DecayRampOptions::Style::Constant, "constant"},
     {DecayRampOptions::Style::Linear, "linear"},
     {DecayRampOptions::Style::Cosine, "cosine"}});

}  // namespace

void DecayRampOptions::describe(config::Fields& f) {
  f.choice(
      "style", style, kDecayRampStyles, {.text = "How the weight decay changes over the updates."});
  f.field("start",
          start,
          {.text = "Weight decay of the first update.",
           .min = 0,
           .default_text = "the optimizer's weight_decay"});
  f.field("end",
          end,
          {.text = "Weight decay at the end of the ramp.",
           .min = 0,
           .default_text = "the optimizer's weight_decay"});
  f.field("steps",
          steps,
          {.text = "Length of the ramp in updates.",
           .unit = "steps",
           .min = 1,
           .default_text = "trainer.max_steps"});
}

DecayRamp::DecayRamp(const DecayRampOptions& options, double weight_decay, std::int64_t max_steps)
    : style_(options.style),
      base_(weight_decay),
      start_(options.start.value_or(weight_decay)),
      end_(options.end.value_or(weight_decay)),
      steps_(options.steps.value_or(max_steps)) {}

double DecayRamp::weight_decay(std::int64_t update) const {
  const std::int64_t n = update - 1;
  if (style_ == DecayRampOptions::Style::Constant || n >= steps_) return end_;
  const double way = static_cast<double>(n) / static_cast<double>(steps_);
  return start_ + (end_ - start_) *
                      (style_ == DecayRampOptions::Style::Linear ? way : 1.0 - half_cosine(way));
}

double DecayRamp::factor(std::int64_t update) const {
  return base_ == 0.0 ? 1.0 : weight_decay(update) / base_;
}

void check_decay_ramp(const DecayRampOptions& options,
                      double weight_decay,
                      const json::Place& place,
                      config::Problems& problems) {
  const double start = options.start.value_or(weight_decay),
               end = options.end.value_or(weight_decay);
  if (options.style == DecayRampOptions::Style::Constant &&
      (start != weight_decay || end != weight_decay)) {
    problems.add(place,
                 "style",
                 fmt::format("\"constant\" uses the optimizer's weight decay of {}, not {} to {}",
                             weight_decay,
                             start,
                             end),
                 "choose \"linear\" or \"cosine\", or set optimizer.params.weight_decay");
  } else if (weight_decay == 0.0 && (start != 0.0 || end != 0.0)) {
    problems.add(
        place,
        options.end ? "end" : "start",
        fmt::format("the optimizer has no weight decay to change from {} to {}", start, end),
        fmt::format("set optimizer.params.weight_decay to {}", end));
  }
}

}  // namespace tessera::optim

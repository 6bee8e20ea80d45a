// SPDX-License-Identifier: Apache-2.0
// OneCycleLR with torch's parameters, as Colossal-AI uses it: i = update - 1, from max_lr /
// div_factor up to max_lr and then down below the start, with the momentum moving in the opposite
// direction.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"
#include "tessera/optim/schedules/curve.h"

namespace tessera::optim {
namespace {

enum class Anneal : std::uint8_t { Cosine, Linear };
constexpr auto kAnneals =
    std::to_array<config::Named<Anneal>>({{Anneal::Cosine, "cos"}, {Anneal::Linear, "linear"}});

struct Options {
  std::int64_t total = 0;
  std::optional<double> high;
  double rise_share = 0.3, divisor = 25.0, last_divisor = 1e4;
  Anneal shape = Anneal::Cosine;
  bool cycle_momentum = true, three_phase = false;
  double low_momentum = 0.85, high_momentum = 0.95;

  void describe(config::Fields& f) {
    f.field("total_steps",
            total,
            {.text = "Length of the whole cycle.",
             .unit = "steps",
             .min = 1,
             .default_text = "trainer.max_steps"});
    f.field("max_lr",
            high,
            {.text = "Learning rate at the peak.", .min = 0, .default_text = "the optimizer's lr"});
    f.field("pct_start",
            rise_share,
            {.text = "Fraction of the steps before the peak.", .min = 0, .max = 1});
    f.field("div_factor",
            divisor,
            {.text = "Divisor of max_lr that gives the initial learning rate.",
             .min = 0,
             .above_min = true});
    f.field("final_div_factor",
            last_divisor,
            {.text = "Divisor of the initial learning rate that gives the final one.",
             .min = 0,
             .above_min = true});
    f.choice("anneal_strategy", shape, kAnneals, {.text = "Shape of the rise and the fall."});
    f.field("three_phase",
            three_phase,
            {.text = "Use a third phase: fall to the initial learning rate as fast as it rose, "
                     "then fall to the final one."});
    describe_momentum(f);
  }
  void describe_momentum(config::Fields& f) {
    f.field("cycle_momentum",
            cycle_momentum,
            {.text = "Vary betas[0] inversely to the learning rate."});
    f.field("base_momentum",
            low_momentum,
            {.text = "Momentum at the peak of the cycle.", .min = 0, .max = 1});
    f.field("max_momentum",
            high_momentum,
            {.text = "Momentum at both ends of the cycle.", .min = 0, .max = 1});
  }
};

class OneCycleLr final : public Schedule {
 public:
  OneCycleLr(const Options& o, double high) : options_(o) {
    const double first = high / o.divisor, last = first / o.last_divisor;
    const auto total = static_cast<double>(o.total);
    const double top = o.rise_share * total - 1.0;
    const double low_momentum = o.low_momentum, high_momentum = o.high_momentum;
    phases_.push_back({top, first, high, high_momentum, low_momentum});
    if (o.three_phase) {
      phases_.push_back({2.0 * top, high, first, low_momentum, high_momentum});
      phases_.push_back({total - 1.0, first, last, high_momentum, high_momentum});
    } else {
      phases_.push_back({total - 1.0, high, last, low_momentum, high_momentum});
    }
  }

  [[nodiscard]] double lr(std::int64_t update) const override {
    const At at = find(update);
    return between(at.phase->from, at.phase->to, at.way);
  }
  [[nodiscard]] std::optional<double> beta1(std::int64_t update) const override {
    if (!options_.cycle_momentum) return std::nullopt;
    const At at = find(update);
    return between(at.phase->momentum_from, at.phase->momentum_to, at.way);
  }

 private:
  /// Ends at step `end`, which need not be an integer.
  struct Phase {
    double end, from, to, momentum_from, momentum_to;
  };
  struct At {
    const Phase* phase;
    double way;
  };

  [[nodiscard]] At find(std::int64_t update) const {
    const auto i = static_cast<double>(update - 1);
    std::size_t p = 0;
    while (p + 1 < phases_.size() && i > phases_[p].end)
      ++p;
    const double begin = p == 0 ? 0.0 : phases_[p - 1].end, length = phases_[p].end - begin;
    // torch rejects steps after the total; here the last rate is kept.
    return {&phases_[p], length > 0.0 ? std::min(1.0, (i - begin) / length) : 1.0};
  }
  [[nodiscard]] double between(double from, double to, double way) const {
    return to + (from - to) * (options_.shape == Anneal::Cosine ? half_cosine(way) : 1.0 - way);
  }

  Options options_;
  std::vector<Phase> phases_;
};

std::unique_ptr<Schedule> make_one_cycle_lr(const json::Value& params,
                                            const ScheduleContext& context,
                                            config::Problems& problems,
                                            config::Origins& origins) {
  auto options = read_params<Options>(params, problems, origins);
  if (options.total == 0) options.total = context.max_steps;
  if (options.three_phase && options.rise_share > 0.5) {
    problems.add(
        place_of(params, "pct_start"),
        "pct_start",
        fmt::format("a rise of {} and a fall of the same length leave nothing for a third phase",
                    options.rise_share),
        "choose at most 0.5, or remove three_phase");
  }
  return std::make_unique<OneCycleLr>(options, options.high.value_or(context.base_lr));
}

TESSERA_LR_SCHEDULE("OneCycleLR", make_one_cycle_lr);

}  // namespace
}  // namespace tessera::optim

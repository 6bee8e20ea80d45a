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

#include "tessera/optim/curve.h"
#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"

namespace tessera::interop {
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
    f.field("total_steps", total, {.unit = "steps", .min = 1});
    f.field("max_lr", high, {.min = 0});
    f.field("pct_start", rise_share, {.min = 0, .max = 1});
    f.field("div_factor", divisor, {.min = 0, .above_min = true});
    f.field("final_div_factor", last_divisor, {.min = 0, .above_min = true});
    f.choice("anneal_strategy", shape, kAnneals, {});
    f.field("three_phase", three_phase, {});
    f.field("cycle_momentum", cycle_momentum, {});
    f.field("base_momentum", low_momentum, {.min = 0, .max = 1});
    f.field("max_momentum", high_momentum, {.min = 0, .max = 1});
  }
};

class OneCycleLr final : public optim::Schedule {
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
    return to +
           (from - to) * (options_.shape == Anneal::Cosine ? optim::half_cosine(way) : 1.0 - way);
  }

  Options options_;
  std::vector<Phase> phases_;
};

std::unique_ptr<optim::Schedule> make_one_cycle_lr(const json::Value& params,
                                                   const optim::ScheduleContext& context,
                                                   config::Problems& problems,
                                                   config::Origins& origins) {
  auto options = optim::read_params<Options>(params, problems, origins);
  if (options.total == 0) options.total = context.max_steps;
  if (options.three_phase && options.rise_share > 0.5) {
    problems.add(
        optim::place_of(params, "pct_start"),
        "pct_start",
        fmt::format("a rise of {} and a fall of the same length leave nothing for a third phase",
                    options.rise_share),
        "choose at most 0.5, or remove three_phase");
  }
  return std::make_unique<OneCycleLr>(options, options.high.value_or(context.base_lr));
}

TESSERA_LR_SCHEDULE("OneCycleLR", make_one_cycle_lr);

}  // namespace
}  // namespace tessera::interop

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/step_profile.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/ops/peak.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/precision.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/values.h"

namespace tessera::engine {
namespace {

constexpr double kSmallShare = 1e-3;

/// One line of the page; texts that are too long are truncated.
std::string line_of(std::string_view name,
                    std::string_view shape,
                    std::string_view calls,
                    std::string_view ms,
                    std::string_view share,
                    std::string_view flops,
                    std::string_view bytes,
                    std::string_view of_roof) {
  const std::string out = fmt::format("{:<20.20} {:<31.31} {:>7} {:>9} {:>6} {:>8} {:>7} {:>15}",
                                      name,
                                      shape,
                                      calls,
                                      ms,
                                      share,
                                      flops,
                                      bytes,
                                      of_roof);
  return out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
}

std::string in_giga(double a_second) {
  return a_second > 0 ? fmt::format("{:.1f}", a_second / 1e9) : "";
}

std::string_view in_words(DType dtype) {
  if (dtype == DType::F32) return "fp32";
  return dtype == DType::BF16 ? "bf16" : "fp16";
}

/// Calls and milliseconds are per step.
class Page {
 public:
  explicit Page(const StepProfile& profile) : profile_(profile) {}

  void heading() {
    text_ +=
        line_of("operation", "shape", "calls", "ms", "share", "GFLOP/s", "GB/s", "of the machine");
  }
  void operation(const ops::OpRow& row) {
    const PeakRates& peak = profile_.peak;
    const double least = peak.seconds(row.flops, row.bytes);
    std::string reached;
    if (least > 0) {
      reached = fmt::format("{:.2f} of {}",
                            least / row.seconds,
                            peak.bound_by_flops(row.flops, row.bytes) ? "FLOP/s" : "memory");
    }
    text_ += line_of(row.name,
                     row.shape,
                     fmt::format("{:.0f}", static_cast<double>(row.calls) / steps()),
                     ms(row.seconds),
                     share(row.seconds),
                     in_giga(row.flops / row.seconds),
                     in_giga(row.bytes / row.seconds),
                     reached);
  }
  void other(const std::string& what, double seconds) {
    text_ += line_of(what, "", "", ms(seconds), share(seconds), "", "", "");
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  [[nodiscard]] double steps() const { return static_cast<double>(profile_.steps); }
  [[nodiscard]] std::string ms(double seconds) const {
    return fmt::format("{:.2f}", 1e3 * seconds / steps());
  }
  [[nodiscard]] std::string share(double seconds) const {
    return fmt::format("{:.1f}%", 100 * seconds / profile_.seconds);
  }
  const StepProfile& profile_;
  std::string text_;
};

std::string summary_of(const StepProfile& profile, const planner::Plan& plan) {
  const PeakRates& peak = profile.peak;
  const double step = profile.seconds / static_cast<double>(profile.steps);
  const double least = profile.least_seconds() / static_cast<double>(profile.steps);
  const double products = profile.least_seconds_of_products() / static_cast<double>(profile.steps);
  return fmt::format(
      "layout      {} {} x {} {}, {}, micro-batch {} x {} tokens, accumulation {}\n"
      "machine     {:.1f} GFLOP/s in {} products, {:.1f} GB/s of memory, measured with this rank's "
      "threads\n"
      "step        {:.1f} ms, mean of {}; {:.0f} tokens/s\n"
      "at least    {:.1f} ms, if every operation ran as fast as the machine allows: {:.2f} of the "
      "step\n"
      "products    {:.1f} ms, if the products of matrices alone ran, at the machine's rate: {:.2f} "
      "of "
      "the step\n",
      plan.ranks(),
      plan.ranks() == 1 ? "rank" : "ranks",
      planner::threads_of(plan),
      planner::threads_of(plan) == 1 ? "thread" : "threads",
      planner::precision_text(plan.layout(), plan.recipe()),
      planner::micro_batch_of(plan),
      planner::sequence_length_of(plan),
      planner::accumulation_of(plan),
      peak.flops / 1e9,
      in_words(planner::working_of(plan)),
      peak.bytes / 1e9,
      1e3 * step,
      profile.steps,
      static_cast<double>(profile.tokens) / profile.seconds,
      1e3 * least,
      least / step,
      1e3 * products,
      products / step);
}

}  // namespace

double PeakRates::seconds(double its_flops, double its_bytes) const {
  return std::max(its_flops / flops, its_bytes / bytes);
}

bool PeakRates::bound_by_flops(double its_flops, double its_bytes) const {
  return its_flops / flops > its_bytes / bytes;
}

PeakRates measure_peak_rates(DType working) {
  return {.flops = ops::peak_flops(working), .bytes = ops::peak_bytes()};
}

double StepProfile::in_operations() const {
  double sum = 0;
  for (const ops::OpRow& row : operations)
    sum += row.seconds;
  return sum;
}

double StepProfile::rest() const {
  return std::max(0.0, seconds - collectives - in_operations());
}

double StepProfile::least_seconds_of_products() const {
  double flops = 0;
  for (const ops::OpRow& row : operations) {
    if (row.shape_class <= ShapeClass::Grouped) flops += row.flops;
  }
  return flops / peak.flops;
}

double StepProfile::least_seconds() const {
  double sum = 0;
  for (const ops::OpRow& row : operations)
    sum += peak.seconds(row.flops, row.bytes);
  return sum;
}

std::optional<StepProfile> profile_steps(Engine& engine, std::int64_t warmup, std::int64_t steps) {
  TESSERA_ASSERT(warmup >= 0 && steps > 0);
  StepProfile out{.steps = steps, .peak = measure_peak_rates(planner::working_of(engine.plan()))};
  for (std::int64_t step = 0; step < warmup; ++step) {
    if (engine.train_step().stop_requested) return std::nullopt;
  }
  // A step's clock starts at the end of the previous step, so measuring is excluded from it.
  engine.pause_clock();
  const ops::OpLog log;
  engine.resume_clock();
  for (std::int64_t step = 0; step < steps; ++step) {
    const StepReport report = engine.train_step();
    if (report.stop_requested) return std::nullopt;
    out.seconds += report.seconds;
    out.collectives += report.comm_s;
    out.tokens += report.batch_tokens;
  }
  out.operations = log.rows();
  return out;
}

std::string roofline_page(const StepProfile& profile, const planner::Plan& plan, bool all) {
  Page page(profile);
  page.heading();
  double small = 0;
  std::size_t count = 0;
  for (const ops::OpRow& row : profile.operations) {
    if (all || row.seconds >= kSmallShare * profile.seconds) {
      page.operation(row);
    } else {
      small += row.seconds;
      ++count;
    }
  }
  if (count > 0) page.other(fmt::format("{} smaller ones", count), small);
  page.other("collectives", profile.collectives);
  page.other("between operations", profile.rest());
  page.other("the step", profile.seconds);
  return summary_of(profile, plan) + "\n" + page.text();
}

}  // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
// tessera verify: checks that a layout trains the same as one rank, and measures the deviation.
#include "tessera/engine/verify.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/merged_config.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/cli/verify_rl.h"
#include "tessera/config/overrides.h"
#include "tessera/data/token_dataset.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/promise.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/interop/foreign_flags.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/planner/with_data.h"

namespace tessera::cli {
namespace {

constexpr int kExitDifferent = 1;
/// The loss bounds are promised for this number of steps.
constexpr std::int64_t kSteps = 10;

struct VerifyFlags {
  std::string config;
  std::optional<std::int64_t> ranks;
  std::string against = "single";
  std::optional<std::int64_t> steps;
  std::vector<std::string> set;
  Common common;
};

bool parse(VerifyFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "verify",
      "Trains the first steps of CONFIG on -n ranks and on one rank with the same micro-batches, "
      "with one thread per rank, and compares the first gradient, the losses and the weights: bit "
      "by bit if the layout guarantees it, otherwise within what rounding explains, which one more "
      "training on one rank measures (docs/parallelism.md). Nothing is "
      "written to the run folder. Exits with code 1 if a bound is violated.",
      {"tessera verify my.json -n 4",
       "tessera verify my.json -n 4 --set parallel.pipeline=2 --set zero_optimization.stage=3",
       "tessera verify my.json -n 2 --set parallel.tensor=2 --steps 5 -v    every tensor",
       "tessera verify my.json -n 8 --json",
       "tessera verify rl my.json    what is sampled against what is trained; see its --help"});
  arguments.positional(
      "CONFIG", &words.config, "JSON file; comments are allowed", /*required=*/false);
  arguments.option(kRanksOption, &words.ranks, "Local ranks of the layout [1]");
  arguments.option("--against", &words.against, "Reference of the comparison: single [single]");
  arguments.option("--steps", &words.steps, "Number of steps [10, or the length of a shorter run]");
  arguments.option(
      "--set", &words.set, "KEY=VALUE: overrides a key of CONFIG; the value is JSON or a string");
  arguments.common(words.common, /*has_json=*/true);
  arguments.also(interop::foreign_flag_names());
  return arguments.parse(line);
}

void check(const VerifyFlags& words) {
  TESSERA_REQUIRE(words.against == "single",
                  Config,
                  fmt::format("--against {}: expected single", words.against),
                  "to compare two layouts, verify each of them against one rank");
  TESSERA_REQUIRE(words.steps.value_or(1) >= 1,
                  Config,
                  fmt::format("--steps {}: expected 1 or more", words.steps.value_or(1)),
                  "");
  TESSERA_REQUIRE(!hosts::detect_launcher(),
                  Unsupported,
                  "not supported under a launcher, which starts a single layout: tessera verify",
                  "start it without the launcher: tessera verify CONFIG -n 2");
}

json::Value source_of(const VerifyFlags& words, const interop::ForeignFlags& foreign) {
  json::Value source = read_configs(words.config, foreign);
  for (const std::string& note : apply(foreign, source, words.set))
    log::warn(note);
  // More threads would split sums by the number of cores that a rank happens to have.
  config::set_key(source, "run.threads_per_rank", json::Value::integer(1), "tessera verify");
  return source;
}

/// The plan of a layout, and the plan for its first gradient.
struct Plans {
  planner::Plan plan, gradient;
};

/// All errors that can be detected are reported before the first rank starts.
Plans plans_of(planner::Plan plan, const std::string& path) {
  const json::Value keeping = engine::keeping_gradient(plan.resolved());
  planner::Plan gradient = planner::make_plan(keeping, plan.ranks(), path);
  return {std::move(plan), std::move(gradient)};
}

/// The same, once the data is open.
struct Side {
  planner::PlacedPlan plan, gradient;
};

Side side_of(const Plans& plans, const data::Datasets& data) {
  const auto placed = [&](const planner::Plan& plan) {
    return planner::place(planner::with_data(plan, data), launch::available_memory());
  };
  return {placed(plans.plan), placed(plans.gradient)};
}

/// If the run has fewer steps than requested, both layouts are extended equally.
void train_longer(Side& layout, Side& single, std::int64_t steps) {
  const std::int64_t run = layout.plan.course().max_steps;
  if (run >= steps) return;
  log::warn(fmt::format(
      "--steps {}: the run has {}; its schedule is that of a run of {} here", steps, run, steps));
  for (Side* const side : {&layout, &single})
    side->plan = planner::with(side->plan, planner::Course{.max_steps = steps, .curve = {}});
}

data::TokenizeOptions tokenize_options(const planner::Plan& plan, const launch::EarlyStop& early) {
  data::TokenizeOptions how;
  how.poll = [&early] { early.check(); };
  how.text_field = planner::data_options_of(plan).text_field;
  how.invalid_utf8 = planner::data_options_of(plan).invalid_utf8;
  how.threads = launch::usable_cores();
  return how;
}

/// One line of the result: the largest deviation of a kind, its place, and its bound.
struct Finding {
  std::string what;  ///< "first gradient"
  double largest = 0.0;
  std::string where;
  std::optional<double> bound;  ///< absent: no promise
  bool kept = true;
};

/// Takes the deviation into the finding if it is the worst one: broken before kept, then the
/// largest part of its bound.
void take_worst(Finding& out,
                double deviation,
                const std::string& where,
                std::optional<double> bound,
                bool kept) {
  const auto part = [](double value, const std::optional<double>& of) {
    return of.value_or(0) > 0 ? value / *of : value;
  };
  const bool worse = part(deviation, bound) > part(out.largest, out.bound);
  if (out.kept != kept ? out.kept : worse) {
    out.largest = deviation;
    out.where = where;
    out.bound = bound;
  }
  out.kept = out.kept && kept;
}

Finding loss_finding(const engine::Deviations& found,
                     const engine::Promise& promise,
                     const engine::RoundingBounds& bounds) {
  Finding out{.what = "loss", .where = "every step", .bound = promise.loss};
  for (std::size_t s = 0; s < found.losses.size(); ++s) {
    const double deviation = found.losses[s];
    const double bound = promise.bits ? 0.0 : bounds.losses.at(s);
    // Later steps are shown without a promise, because rounding errors grow.
    const bool kept = static_cast<std::int64_t>(s) >= kSteps || deviation <= bound;
    take_worst(out, deviation, fmt::format("step {}", s + 1), bound, kept);
  }
  if (promise.bits) out.kept = found.same_losses;
  return out;
}

Finding gradient_finding(const engine::Deviations& found,
                         const engine::Promise& promise,
                         const engine::RoundingBounds& bounds) {
  Finding out{.what = "first gradient", .where = "every tensor", .bound = promise.gradient};
  for (const engine::TensorDeviation& tensor : found.tensors) {
    const double bound = promise.bits ? 0.0 : bounds.gradients.at(tensor.name);
    const bool kept = promise.bits ? tensor.gradient.same_bits : tensor.gradient.relative <= bound;
    take_worst(out, tensor.gradient.relative, tensor.name, bound, kept);
  }
  return out;
}

/// Weights have no bound unless all bits agree: optimizers like Adam turn a gradient that is only
/// rounding error into a full-size update.
Finding weights_finding(const engine::Deviations& found, const engine::Promise& promise) {
  Finding out{.what = "weights", .where = "every tensor"};
  if (promise.bits) out.bound = 0.0;
  for (const engine::TensorDeviation& tensor : found.tensors) {
    take_worst(out,
               tensor.weights.relative,
               tensor.name,
               out.bound,
               !promise.bits || tensor.weights.same_bits);
  }
  return out;
}

std::vector<Finding> findings_of(const engine::Deviations& found,
                                 const engine::Promise& promise,
                                 const engine::RoundingBounds& bounds) {
  return {gradient_finding(found, promise, bounds),
          loss_finding(found, promise, bounds),
          weights_finding(found, promise)};
}

std::string in_words(double deviation) {
  return deviation == 0 ? "0" : fmt::format("{:.2e}", deviation);
}

std::string bound_in_words(const Finding& finding, const engine::Promise& promise) {
  if (promise.bits) return "the same bits";
  return finding.bound ? fmt::format("at most {:.1e}", *finding.bound) : "no bound";
}

std::string layout_text(const planner::Plan& plan) {
  return fmt::format("{} {}: {}, ZeRO stage {}, micro-batch {} x accumulation {}",
                     plan.ranks(),
                     plan.ranks() == 1 ? "rank" : "ranks",
                     plan.mesh().text(),
                     planner::zero_stage_of(plan),
                     planner::micro_batch_of(plan),
                     planner::accumulation_of(plan));
}

/// The content of both outputs.
struct Verdict {
  const Side& layout;
  const Side& single;
  const engine::Promise& promise;
  const engine::Deviations& found;
  std::vector<Finding> findings;
  /// True if all bits are equal, whatever was promised.
  [[nodiscard]] bool equal() const {
    return found.same_losses &&
           std::all_of(found.tensors.begin(), found.tensors.end(), [](const auto& tensor) {
             return tensor.gradient.same_bits && tensor.weights.same_bits;
           });
  }
  [[nodiscard]] bool kept() const {
    return std::all_of(
        findings.begin(), findings.end(), [](const Finding& finding) { return finding.kept; });
  }
};

void print_tensors(Terminal& terminal, const engine::Deviations& found) {
  std::size_t width = 6;
  for (const engine::TensorDeviation& tensor : found.tensors)
    width = std::max(width, tensor.name.size());
  terminal.line(
      fmt::format("{:<{}}  {:>14}  {:>14}", "tensor", width, "first gradient", "weights"));
  for (const engine::TensorDeviation& tensor : found.tensors) {
    terminal.line(fmt::format("{:<{}}  {:>14}  {:>14}",
                              tensor.name,
                              width,
                              in_words(tensor.gradient.relative),
                              in_words(tensor.weights.relative)));
  }
  terminal.line("");
}

void print_table(Terminal& terminal, const Verdict& verdict, bool verbose) {
  terminal.line("layout    " + layout_text(verdict.layout.plan));
  terminal.line("against   " + layout_text(verdict.single.plan));
  terminal.line("promise   " + (verdict.promise.bits ? std::string("the same bits")
                                                     : "within rounding: " + verdict.promise.why));
  terminal.line("");
  if (verbose) print_tensors(terminal, verdict.found);
  terminal.line(fmt::format("{:<15} {:>9}   {:<32} {}",
                            fmt::format("{} steps", verdict.found.losses.size()),
                            "largest",
                            "at",
                            "promised"));
  for (const Finding& finding : verdict.findings) {
    terminal.line(fmt::format("{:<15} {:>9}   {:<32} {}{}",
                              finding.what,
                              in_words(finding.largest),
                              finding.where,
                              bound_in_words(finding, verdict.promise),
                              finding.kept ? "" : "   BROKEN"));
  }
  terminal.line("");
  terminal.line(!verdict.kept()   ? "different: the layout does not train what one rank trains"
                : verdict.equal() ? "equal: every bit is the same"
                                  : "within bounds: the layout keeps its promise, with other bits");
}

/// Infinity, which JSON cannot represent, becomes null.
json::Value finding_json(const Finding& finding) {
  json::Value out;
  out["largest"] = json::Value::number(finding.largest);
  out["where"] = json::Value::string(finding.where);
  out["bound"] = finding.bound ? json::Value::number(*finding.bound) : json::Value();
  out["kept"] = json::Value::boolean(finding.kept);
  return out;
}

json::Value side_json(const planner::Plan& plan) {
  json::Value out;
  out["ranks"] = json::Value::integer(plan.ranks());
  out["mesh"] = json::Value::string(plan.mesh().text());
  out["zero_stage"] = json::Value::integer(planner::zero_stage_of(plan));
  out["micro_batch"] = json::Value::integer(planner::micro_batch_of(plan));
  out["accumulation"] = json::Value::integer(planner::accumulation_of(plan));
  return out;
}

void print_json(const Verdict& verdict) {
  json::Value out;
  out["equal"] = json::Value::boolean(verdict.equal());
  out["kept"] = json::Value::boolean(verdict.kept());
  out["promise"] = json::Value::string(verdict.promise.bits ? "bits" : "rounding");
  if (!verdict.promise.bits) out["why"] = json::Value::string(verdict.promise.why);
  out["steps"] = json::Value::integer(static_cast<std::int64_t>(verdict.found.losses.size()));
  out["layout"] = side_json(verdict.layout.plan);
  out["against"] = side_json(verdict.single.plan);
  const std::vector<const char*> keys = {"first_gradient", "loss", "weights"};
  for (std::size_t i = 0; i < keys.size(); ++i)
    out[keys[i]] = finding_json(verdict.findings[i]);
  json::Value tensors = json::Value::object();
  for (const engine::TensorDeviation& tensor : verdict.found.tensors) {
    tensors[tensor.name] = json::Value::object(
        {{"first_gradient", json::Value::number(tensor.gradient.relative)},
         {"weights", json::Value::number(tensor.weights.relative)},
         {"same_bits",
          json::Value::boolean(tensor.gradient.same_bits && tensor.weights.same_bits)}});
  }
  out["tensors"] = std::move(tensors);
  std::printf("%s\n", out.dump().c_str());
}

/// Runs both layouts one after the other, in a folder that is removed with this object. If not all
/// bits are promised, one rank trains once more, with weights that are moved by the promise's
/// spacing.
class Trainings {
 public:
  Trainings(const Side& layout,
            const Side& single,
            const engine::Promise& promise,
            std::int64_t steps)
      : layout_(layout), single_(single), promise_(promise), steps_(steps) {}

  /// Returns the first exit code that is not 0, or 0.
  int run(Terminal* shown,
          const std::shared_ptr<const data::Datasets>& data,
          const launch::EarlyStop& early) {
    for (const auto& [side, trace, name, nudge] :
         {std::tuple(&single_, &single_trace_, "single", 0.0),
          std::tuple(&single_, &nudged_trace_, "nudged", promise_.spacing),
          std::tuple(&layout_, &trace_, "layout", 0.0)}) {
      if (promise_.bits && trace == &nudged_trace_) continue;
      early.check();
      if (shown != nullptr)
        shown->live(fmt::format("training {} steps: {}", steps_, layout_text(side->plan)));
      *trace = engine::trace_layout(side->plan,
                                    side->gradient,
                                    data,
                                    steps_,
                                    folder_.path() / name,
                                    engine::log_failure,
                                    nudge);
      if (shown != nullptr) shown->live("");
      if (trace->code != kExitOk) return trace->code;
    }
    return kExitOk;
  }
  [[nodiscard]] engine::Deviations compare() const {
    return engine::compare_traces(single_trace_, trace_);
  }
  /// Empty if all bits are promised.
  [[nodiscard]] engine::RoundingBounds bounds() const {
    if (promise_.bits) return {};
    return engine::rounding_bounds(engine::compare_traces(single_trace_, nudged_trace_), promise_);
  }

 private:
  const Side& layout_;
  const Side& single_;
  const engine::Promise& promise_;
  std::int64_t steps_;
  files::TempDir folder_;
  engine::LayoutTrace single_trace_, nudged_trace_, trace_;
};

std::string path_of(const VerifyFlags& words, const interop::ForeignFlags& foreign) {
  std::string path = interop::config_of(words.config, foreign);
  TESSERA_REQUIRE(!path.empty(),
                  Config,
                  "tessera verify: CONFIG is missing",
                  "tessera init nano --data my.txt > my.json; tessera verify my.json -n 2");
  return path;
}

int run_verify(const VerifyFlags& words, const json::Value& source, const std::string& path) {
  const planner::Plan plan = planner::make_plan(source, ranks_of(words.ranks), path);
  const engine::Promise promise = engine::promise_of(plan);
  const Plans one_rank = plans_of(planner::make_plan(engine::on_one_rank(plan), 1, path), path);
  const Plans asked = plans_of(plan, path);

  const launch::EarlyStop early;
  const auto data = engine::open_data(asked.plan, tokenize_options(asked.plan, early));
  Side layout = side_of(asked, *data), single = side_of(one_rank, *data);
  const std::int64_t steps = words.steps.value_or(std::min(kSteps, layout.plan.course().max_steps));
  train_longer(layout, single, steps);

  Terminal terminal;
  const bool table = !words.common.json && !words.common.quiet;
  Trainings trainings(layout, single, promise, steps);
  const int code = trainings.run(table ? &terminal : nullptr, data, early);
  if (code != kExitOk) return code;
  const engine::Deviations found = trainings.compare();
  const Verdict verdict{
      layout, single, promise, found, findings_of(found, promise, trainings.bounds())};
  if (words.common.json) print_json(verdict);
  if (table) print_table(terminal, verdict, words.common.verbose);
  return verdict.kept() ? kExitOk : kExitDifferent;
}

int verify(const std::vector<std::string>& line) {
  if (!line.empty() && line.front() == "rl") return verify_rl({line.begin() + 1, line.end()});
  std::vector<std::string> rest = line;
  for (const std::string& word : line)
    refuse_script(word, line);
  const interop::ForeignFlags foreign = interop::take_foreign_flags(rest);
  VerifyFlags words;
  if (!parse(words, rest)) return kExitOk;
  const std::string path = path_of(words, foreign);
  check(words);
  for (const std::string& note : foreign.notes)
    log::warn(note);
  return run_verify(words, source_of(words, foreign), path);
}

TESSERA_COMMAND("verify", "verify that a layout trains the same as one rank", verify);

}  // namespace
}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tune/session.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <iterator>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/tune/residual.h"

namespace tessera::tune {
namespace {

namespace fs = std::filesystem;

constexpr double kClearlySlower = 1.25;

double value_of(const TrialResult& result,
                const Choice& choice,
                const Space& space,
                Metric metric) {
  if (metric == Metric::Memory) return static_cast<double>(result.memory_bytes);
  if (metric == Metric::Cost)
    return result.step_s * choice.ranks * std::max(space.machine().price_per_hour, 1.0) / 3600;
  return result.step_s;
}

json::Value number(double value) {
  return json::Value::number(value);
}

json::Value trial_json(const Trial& trial) {
  const TrialResult& result = trial.result;
  return json::Value::object({{"layout", to_json(trial.choice)},
                              {"predicted", number(trial.predicted)},
                              {"expected", number(trial.expected)},
                              {"outcome", json::Value::string(name(result.outcome))},
                              {"step_s", number(result.step_s)},
                              {"step_error_s", number(result.error_s)},
                              {"steps", json::Value::integer(result.steps)},
                              {"memory_bytes", json::Value::integer(result.memory_bytes)},
                              {"wall_s", number(result.wall_s)},
                              {"exit_code", json::Value::integer(result.exit_code)},
                              {"error", json::Value::string(result.error)},
                              {"runs", json::Value::integer(trial.runs)},
                              {"value", number(trial.value)}});
}

Trial trial_from_json(const json::Value& value) {
  const auto need = [&](const char* key) -> const json::Value& {
    const json::Value* const found = value.find(key);
    TESSERA_REQUIRE(found != nullptr,
                    Format,
                    fmt::format("{}: the key {} is missing", value.place.text(), key),
                    "remove the file, and tune again");
    return *found;
  };
  Trial out;
  out.choice = choice_from_json(need("layout"));
  out.predicted = need("predicted").as_double();
  out.expected = need("expected").as_double();
  out.result.outcome = outcome_of(need("outcome").as_string());
  out.result.step_s = need("step_s").as_double();
  out.result.error_s = need("step_error_s").as_double();
  out.result.steps = need("steps").as_integer().value_or(0);
  out.result.memory_bytes = need("memory_bytes").as_integer().value_or(0);
  out.result.wall_s = need("wall_s").as_double();
  out.result.exit_code = static_cast<int>(need("exit_code").as_integer().value_or(0));
  out.result.error = need("error").as_string();
  out.value = need("value").as_double();
  if (const json::Value* const runs = value.find("runs"); runs != nullptr && runs->is_number())
    out.runs = static_cast<int>(std::clamp<std::int64_t>(runs->as_integer().value_or(1), 1, 2));
  return out;
}

class Session {
 public:
  Session(Space& space, const TuneOptions& options)
      : space_(space), options_(options), residual_(space.machine().uncertainty) {}

  Tuned run() {
    begin_ = now_s();
    out_.found = search(space_, options_.search);
    tell(fmt::format("search      {} layouts, {} of them simulated, {} are candidates",
                     text::with_commas(static_cast<std::int64_t>(out_.found.choices)),
                     out_.found.predicted,
                     out_.found.best.size()));
    out_.fingerprint = fingerprint();
    go_on();
    for (const Candidate& candidate : out_.found.best)
      waiting_.push_back(candidate);
    if (options_.order == TuneOptions::Order::Random) shuffle();
    measure_own();
    while (out_.why_ended.empty())
      measure_next();
    measure_buckets();
    finish();
    return std::move(out_);
  }

 private:
  void tell(const std::string& line) const {
    if (options_.tell) options_.tell(line);
  }
  [[nodiscard]] fs::path file() const { return options_.folder / "tuned.json"; }

  [[nodiscard]] std::string fingerprint() const {
    const Fixed& fixed = options_.search.fixed;
    std::string all = space_.source().dump() + name(options_.search.metric);
    for (const bool one : {fixed.tensor,
                           fixed.context,
                           fixed.pipeline,
                           fixed.schedule,
                           fixed.zero,
                           fixed.micro,
                           fixed.recompute,
                           fixed.threads,
                           fixed.bucket,
                           fixed.expert,
                           fixed.offload})
      all += one ? '1' : '0';
    all += fmt::format(" {} {}", space_.own().ranks, space_.machine().name);
    std::uint64_t hash = 0;
    for (const char c : all)
      hash = mix64(hash, static_cast<unsigned char>(c));
    return fmt::format("{:016x}", hash);
  }

  // Takes the trials of an earlier search.
  void go_on() {
    std::error_code ignored;
    if (options_.overwrite || !fs::exists(file(), ignored)) return;
    const json::Value saved = json::parse_strict(files::read(file()), file().string());
    const json::Value* const of = saved.find("fingerprint");
    if (of == nullptr || !of->is_string() || of->as_string() != out_.fingerprint) {
      tell(fmt::format("search      {} is of another configuration and is replaced",
                       file().string()));
      return;
    }
    const json::Value* const trials = saved.find("trials");
    if (trials == nullptr) return;
    for (const json::Value& one : trials->items()) {
      Trial trial = trial_from_json(one);
      if (trial.result.outcome != Outcome::Interrupted) take(std::move(trial));
    }
    tell(fmt::format(
        "search      goes on after {} trials of {}", out_.trials.size(), file().string()));
  }

  void shuffle() {
    for (std::size_t i = waiting_.size(); i > 1; --i)
      std::swap(waiting_[i - 1], waiting_[mix64(options_.seed, i) % i]);
  }

  [[nodiscard]] bool tried(const Choice& choice) const {
    return std::ranges::any_of(out_.trials,
                               [&](const Trial& trial) { return trial.choice == choice; });
  }

  // The value that the trials so far let expect, and the lower end of its interval.
  [[nodiscard]] std::pair<double, double> expected(const Candidate& candidate) const {
    if (options_.search.metric == Metric::Memory) return {candidate.value, candidate.value};
    const auto [mean, deviation] = residual_.at(candidate.choice);
    return {candidate.value * std::exp(mean), candidate.value * std::exp(mean - 2 * deviation)};
  }

  void measure_own() {
    if (tried(space_.own())) return;
    try {
      measure({candidate_of(space_, space_.own(), options_.search.metric)},
              "the configuration's own");
    } catch (const Error& error) {
      tell(fmt::format("trial 0     the configuration's own layout is not measured: {}",
                       error.what()));
    }
  }

  void measure_next() {
    std::erase_if(waiting_, [&](const Candidate& one) { return tried(one.choice); });
    if (waiting_.empty()) return end("all candidates are measured");
    if (out_.trials.size() >= options_.most_trials)
      return end(fmt::format("{} trials were allowed", options_.most_trials));
    if (since_best_ >= options_.patience && out_.winner)
      return end(fmt::format("{} trials brought nothing better", since_best_));
    if (now_s() - begin_ > options_.budget_s) return end("the budget is used");
    if (options_.interrupted && options_.interrupted()) return end("it was interrupted");
    if (options_.order == TuneOptions::Order::ModelBased) {
      std::ranges::stable_sort(
          waiting_, {}, [&](const Candidate& one) { return expected(one).first; });
      const bool hopeless = out_.winner && std::ranges::all_of(waiting_, [&](const Candidate& one) {
                              return expected(one).second > out_.trials[*out_.winner].value;
                            });
      if (hopeless) return end("no other candidate is likely to be better");
    }
    const std::size_t most = std::min(std::max<std::size_t>(1, options_.hosts.size()),
                                      options_.most_trials - out_.trials.size());
    measure({waiting_.begin(),
             waiting_.begin() + static_cast<std::ptrdiff_t>(std::min(most, waiting_.size()))},
            "");
  }

  // The best layout with other buckets: no prediction tells them apart.
  void measure_buckets() {
    if (!out_.winner || options_.buckets.empty()) return;
    const Choice best = out_.trials[*out_.winner].choice;
    if (best.data() == 1) return;
    for (const std::int64_t bucket : options_.buckets) {
      if (options_.interrupted && options_.interrupted()) return;
      if (out_.trials.size() >= options_.most_trials) return;
      if (now_s() - begin_ > options_.budget_s) return;
      Choice choice = best;
      choice.bucket = bucket;
      if (!tried(choice))
        measure({candidate_of(space_, choice, options_.search.metric)}, "its buckets");
    }
  }

  void end(std::string why) { out_.why_ended = std::move(why); }

  /// Runs trials at once, one on each host.
  void measure(const std::vector<Candidate>& candidates, const std::string& what) {
    std::vector<std::function<TrialResult()>> runs;
    std::vector<std::future<TrialResult>> results;
    std::vector<Trial> trials;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      Trial& trial = trials.emplace_back();
      trial.choice = candidates[i].choice;
      trial.predicted = candidates[i].value;
      trial.expected = expected(candidates[i]).first;
      runs.emplace_back(
          [this,
           config = with_choice(space_.source(), candidates[i].choice),
           one = options_of(candidates[i].choice, i)] { return options_.run(config, one); });
      // One alone runs in this thread, when its result is asked for.
      results.push_back(std::async(
          candidates.size() > 1 ? std::launch::async : std::launch::deferred, runs.back()));
    }
    for (std::size_t i = 0; i < trials.size(); ++i) {
      Trial& trial = trials[i];
      take_result(trial, results[i].get());
      if (is_doubtful(trial)) {
        tell(fmt::format("{}; it runs again, because {:.3f} was expected",
                         line_of(trial, out_.trials.size()),
                         trial.expected));
        take_result(trial, runs[i]());
      }
      tell(line_of(trial, out_.trials.size()) + (what.empty() ? "" : " (" + what + ")"));
      if (trial.result.outcome == Outcome::Interrupted) end("it was interrupted");
      take(std::move(trial));
      write();
    }
  }

  /// Of two runs the faster one counts: a disturbance can only slow a run down.
  void take_result(Trial& trial, TrialResult result) {
    const bool counts = result.outcome == Outcome::Measured || result.outcome == Outcome::Stopped;
    const double value =
        counts ? value_of(result, trial.choice, space_, options_.search.metric) : 0;
    ++trial.runs;
    if (trial.value > 0 && (!counts || value >= trial.value)) return;
    trial.result = std::move(result);
    trial.value = value;
  }

  /// True if the trial was expected to be the best one and was clearly slower: either the
  /// prediction is wrong, or another process disturbed the trial.
  [[nodiscard]] bool is_doubtful(const Trial& trial) const {
    return out_.winner && trial.value > 0 && options_.search.metric != Metric::Memory &&
           trial.value > kClearlySlower * trial.expected &&
           trial.expected < out_.trials[*out_.winner].value;
  }

  /// The options of the `i`-th trial of those that begin now.
  [[nodiscard]] TrialOptions options_of(const Choice& choice, std::size_t i) const {
    TrialOptions one;
    one.command = options_.command;
    const auto add = [&](std::vector<std::string> words) {
      std::ranges::move(words, std::back_inserter(one.command));
    };
    if (options_.ranks_of) add(options_.ranks_of(choice));
    if (!options_.hosts.empty()) add(options_.hosts[i % options_.hosts.size()]);
    one.folder = options_.folder / "trials" / std::to_string(out_.trials.size() + i);
    one.first_step = options_.first_step;
    one.steps = options_.steps;
    one.interrupted = options_.interrupted;
    one.most_seconds = std::max(60.0, options_.budget_s);
    if (!out_.winner || options_.search.metric == Metric::Memory) return one;
    const Trial& best = out_.trials[*out_.winner];
    one.clearly_slower_s = kClearlySlower * best.result.step_s;
    if (options_.search.metric == Metric::Cost)
      one.clearly_slower_s *= static_cast<double>(best.choice.ranks) / choice.ranks;
    return one;
  }

  void take(Trial trial) {
    const TrialResult& result = trial.result;
    ++since_best_;
    if (trial.value > 0 && result.step_s > 0 && options_.search.metric != Metric::Memory &&
        trial.predicted > 0)
      residual_.add(trial.choice, trial.value / trial.predicted, result.error_s / result.step_s);
    const bool best = result.outcome == Outcome::Measured && trial.value > 0 &&
                      (!out_.winner || trial.value < out_.trials[*out_.winner].value);
    out_.trials.push_back(std::move(trial));
    if (!best) return;
    out_.winner = out_.trials.size() - 1;
    since_best_ = 0;
  }

  void write() {
    fs::create_directories(options_.folder);
    files::write_atomic(file(),
                        tuned_json(with_gain(), space_, options_.search.metric).dump(2) + "\n");
  }

  [[nodiscard]] const Tuned& with_gain() {
    out_.gain.reset();
    const auto own = std::ranges::find_if(out_.trials, [&](const Trial& trial) {
      return trial.choice == space_.own() && trial.result.outcome == Outcome::Measured;
    });
    if (!out_.winner || own == out_.trials.end()) return out_;
    const Trial& best = out_.trials[*out_.winner];
    if (best.value <= 0) return out_;
    const double ratio = own->value / best.value;
    const auto share = [](const Trial& of) { return of.result.error_s / of.result.step_s; };
    const double before = share(*own), after = share(best);
    // std::hypot() needs a newer glibc than the wheel promises.
    out_.gain = {ratio, ratio * std::sqrt(before * before + after * after)};
    return out_;
  }

  void finish() {
    // A result that no trial could show.
    if (!waiting_.empty()) {
      out_.found.not_tried.push_back({"a candidate was not measured: " + out_.why_ended,
                                      waiting_.size(),
                                      text_of(waiting_.front().choice)});
    }
    write();
  }

 public:
  static std::string line_of(const Trial& trial, std::size_t index) {
    const TrialResult& result = trial.result;
    std::string how;
    switch (result.outcome) {
      case Outcome::Measured:
        how = fmt::format("{:.3f} s +- {:.3f}", result.step_s, result.error_s);
        break;
      case Outcome::Stopped:
        how = fmt::format("{:.3f} s, stopped as clearly slower", result.step_s);
        break;
      default:
        how = name(result.outcome) + (result.error.empty() ? "" : ": " + result.error);
    }
    return fmt::format("trial {:<5} {} | {}", index, text_of(trial.choice), how);
  }

 private:
  Space& space_;
  const TuneOptions& options_;
  Residual residual_;
  Tuned out_;
  std::vector<Candidate> waiting_;
  double begin_ = 0;
  std::size_t since_best_ = 0;
};

}  // namespace

void check_budget(double seconds) {
  constexpr double kLeastBudget = 5;
  TESSERA_REQUIRE(seconds >= kLeastBudget,
                  Config,
                  fmt::format("a budget of {:.3g} s is too small for one trial", seconds),
                  fmt::format("--budget {:.0f}s or more", kLeastBudget));
}

Tuned tune(Space& space, const TuneOptions& options) {
  check_budget(options.budget_s);
  return Session(space, options).run();
}

std::vector<std::string> tuned_lines(const Tuned& tuned, const Space& space, Metric metric) {
  std::vector<std::string> out = {"", "tried"};
  for (std::size_t i = 0; i < tuned.trials.size(); ++i) {
    const Trial& trial = tuned.trials[i];
    out.push_back(fmt::format("  {}{} | predicted {:.3f}, expected {:.3f}",
                              tuned.winner == i ? "* " : "  ",
                              Session::line_of(trial, i),
                              trial.predicted,
                              trial.expected));
  }
  out.emplace_back("not tried");
  for (const NotTried& one : tuned.found.not_tried) {
    std::string line = "  ";
    if (one.count > 0) line += text::with_commas(static_cast<std::int64_t>(one.count)) + ": ";
    line += one.why;
    if (!one.example.empty()) line += "; for example " + one.example;
    out.push_back(std::move(line));
  }
  out.push_back("the search ended because " + tuned.why_ended);
  if (!tuned.winner) {
    out.emplace_back("no trial was measured");
    return out;
  }
  const Trial& best = tuned.trials[*tuned.winner];
  out.push_back(fmt::format("best by {}: {}", name(metric), text_of(best.choice)));
  const std::vector<std::string> changed = differences(space.own(), best.choice);
  if (changed.empty()) out.emplace_back("  the configuration's own layout");
  for (const std::string& line : changed)
    out.push_back("  " + line);
  if (tuned.gain)
    out.push_back(fmt::format("gain        {:.3f} +- {:.3f} times the configuration's own",
                              tuned.gain->first,
                              tuned.gain->second));
  return out;
}

json::Value tuned_json(const Tuned& tuned, const Space& space, Metric metric) {
  json::Value out;
  out["fingerprint"] = json::Value::string(tuned.fingerprint);
  out["machine"] = json::Value::string(space.machine().name);
  out["metric"] = json::Value::string(name(metric));
  out["choices"] = json::Value::integer(static_cast<std::int64_t>(tuned.found.choices));
  out["simulated"] = json::Value::integer(static_cast<std::int64_t>(tuned.found.predicted));
  out["own"] = to_json(space.own());
  out["trials"] = json::Value::array();
  for (const Trial& trial : tuned.trials)
    out["trials"].push_back(trial_json(trial));
  out["not_tried"] = json::Value::array();
  for (const NotTried& one : tuned.found.not_tried) {
    out["not_tried"].push_back(
        json::Value::object({{"why", json::Value::string(one.why)},
                             {"count", json::Value::integer(static_cast<std::int64_t>(one.count))},
                             {"example", json::Value::string(one.example)}}));
  }
  out["ended"] = json::Value::string(tuned.why_ended);
  if (!tuned.winner) return out;
  const Trial& best = tuned.trials[*tuned.winner];
  out["winner"] = to_json(best.choice);
  json::Value changes = json::Value::array();
  for (std::string& line : differences(space.own(), best.choice))
    changes.push_back(json::Value::string(std::move(line)));
  out["changes"] = std::move(changes);
  if (tuned.gain) {
    out["gain"] = number(tuned.gain->first);
    out["gain_error"] = number(tuned.gain->second);
  }
  return out;
}

}  // namespace tessera::tune

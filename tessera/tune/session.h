// SPDX-License-Identifier: Apache-2.0
// Tunes a training: predicts its layouts, measures the best few in trials, and keeps what is known
// in a file, so that a search that was stopped goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/tune/search.h"
#include "tessera/tune/trial.h"

namespace tessera::tune {

struct Trial {
  Choice choice;
  double predicted = 0;  ///< value by the metric, before trials
  double expected = 0;   ///< the same, corrected by the trials before it
  TrialResult result;
  double value = 0;  ///< measured; 0: none
  /// Runs of the trial. One that was expected to be the best and is clearly slower runs twice, and
  /// its faster run counts.
  int runs = 0;
};

struct TuneOptions {
  SearchOptions search;
  /// Seconds for all trials; one that has begun is completed.
  double budget_s = 600;
  std::size_t most_trials = 50;
  /// The search ends after this number of trials without a better one.
  std::size_t patience = 5;
  std::int64_t first_step = 3, steps = 4;
  /// The order of trials: by the corrected prediction, by the prediction alone, or at random.
  enum class Order : std::uint8_t { ModelBased, Grid, Random } order = Order::ModelBased;
  std::uint64_t seed = 1234;  ///< of a random order
  /// Values of reduce_bucket_size that are tried with the best layout at the end.
  std::vector<std::int64_t> buckets = {};
  std::filesystem::path folder;      ///< of tuned.json and trials/
  bool overwrite = false;            ///< forget the trials of an earlier search
  std::vector<std::string> command;  ///< TrialOptions::command
  std::function<std::vector<std::string>(const Choice&)> ranks_of = {};  ///< words of a trial
  /// Words of a trial by which it runs on one of several hosts, for each host: as many trials run
  /// at once. All hosts see `folder`. Empty: trials run on this host, one after the other.
  std::vector<std::vector<std::string>> hosts = {};
  std::function<bool()> interrupted = {};
  std::function<void(const std::string& line)> tell = {};
  /// Replaces run_trial() in tests. Called in several threads if there are several hosts.
  std::function<TrialResult(const json::Value& config, const TrialOptions& options)> run =
      run_trial;
};

/// The end of a search.
struct Tuned {
  Found found;
  std::vector<Trial> trials;  ///< in the order in which they ran; first the configuration's own
  std::optional<std::size_t> winner;  ///< among the trials; nothing: none was measured
  /// How much faster the winner is than the configuration: the ratio and its standard error;
  /// nothing if one of them was not measured.
  std::optional<std::pair<double, double>> gain;
  std::string why_ended;
  std::string fingerprint;  ///< of configuration, ranks, metric and fixed keys
};

/// Throws Error{Config} if a budget of `seconds` is too small for one trial.
void check_budget(double seconds);

/// Trials of an earlier call in the same folder count if the configuration, the machine, the metric
/// and the fixed keys are the same. tuned.json is written after each trial. Throws the errors of
/// search(), Error{Config} if the budget is too small for one trial, and Error{Io}.
Tuned tune(Space& space, const TuneOptions& options);

/// The table of what was tried, what was not tried and why, the winner as a difference of the
/// configuration, and the gain.
std::vector<std::string> tuned_lines(const Tuned& tuned, const Space& space, Metric metric);
json::Value tuned_json(const Tuned& tuned, const Space& space, Metric metric);

}  // namespace tessera::tune

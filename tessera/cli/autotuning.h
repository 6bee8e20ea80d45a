// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's --autotuning: trials of the ZeRO stage and the micro-batch before a training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/tune/session.h"

namespace tessera::cli {

/// The block `autotuning` of a DeepSpeed configuration, with DeepSpeed's defaults.
struct AutotuningBlock {
  bool fast = true, overwrite = true;
  tune::Metric metric = tune::Metric::Throughput;
  tune::TuneOptions::Order order = tune::TuneOptions::Order::Grid;
  std::int64_t start_step = 3, end_step = 5;
  std::int64_t early_stopping = 5, num_trials = 50;
  std::int64_t min_batch = 1, min_micro = 1, max_micro = 1024, num_micros = 3, mp_size = 1;
  std::optional<std::int64_t> max_batch;
  std::filesystem::path results = "autotuning_results", experiments = "autotuning_exps";
  /// Keys of the trials' configurations to flags that also get their values.
  std::map<std::string, std::string> mappings;
  /// Members of model_info, which are compared with the model.
  std::map<std::string, std::int64_t> model_info;
  std::filesystem::path metric_path;      ///< also receives the metrics of the winner
  std::filesystem::path model_info_path;  ///< also receives the facts about the model
};
/// Throws Error{Config} with the place of a wrong value, of a mapping to a flag that is not known,
/// and of a member of model_info that has no meaning here.
AutotuningBlock read_autotuning(const json::Value& source);

/// The flags of `mappings` with the values of their keys in `config`: "--flag", "4", ... A key is
/// found by its path, or by its name in any section, as DeepSpeed finds it. Throws Error{Config}
/// for a key without a value, and for a flag that sets another key.
std::vector<std::string> mapped_flags(const std::map<std::string, std::string>& mappings,
                                      const json::Value& config);

/// Takes "--autotuning tune" or "--autotuning run" out of the words; nothing if it is not there.
/// Throws Error{Config} for another value.
std::optional<std::string> take_autotuning(std::vector<std::string>& words);

/// Tunes the training of the words after `train`, and with `mode` "run" trains with the best
/// layout. Returns the exit code.
int autotune(const std::string& mode, const std::vector<std::string>& line);

}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
// Cross-validation: `tessera train --folds K` trains once for each fold of data.train and compares
// the evaluations.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/tasks/eval_options.h"

namespace tessera::cli {

/// The measurements of one fold's training.
struct FoldResult {
  std::int64_t fold = 0, step = 0;       ///< from 1; step of the evaluation
  std::map<std::string, double> values;  ///< "loss" and the metrics of that evaluation
  std::map<std::string, double> test;    ///< the same of data.test; empty: there is none
};

/// Reads the evaluation of a fold from the lines of its metrics.jsonl: the best one by `rule`, or
/// the last one without a rule. Throws Error{Data} if there is none.
FoldResult read_fold(const std::string& metrics,
                     std::int64_t fold,
                     const std::optional<tasks::BestRule>& rule);

/// {"folds": K, "evaluation": "last" or the rule's metric, "results": [{"fold", "step", "loss",
/// ...}], "mean": {...}, "sd": {...}}, and "test" with results, mean and sd. The standard deviation
/// is that of a sample (division by K - 1), over metrics that every fold has.
json::Value folds_json(const std::vector<FoldResult>& results,
                       const std::optional<tasks::BestRule>& rule);
/// The lines of the table of folds_json(), with the mean and the standard deviation at the end.
std::vector<std::string> folds_table(const std::vector<FoldResult>& results,
                                     const std::optional<tasks::BestRule>& rule);

/// Sets in a configuration that one of the folds is held out. Evaluates every epoch unless
/// eval.every is given; returns whether it is not.
bool set_fold(json::Value& source, std::int64_t folds, std::int64_t fold);

struct FoldsCommand {
  std::vector<std::string> line;  ///< of tessera train, without --folds and --json
  std::int64_t folds = 0;
  std::filesystem::path dir;            ///< contains a run for each fold: fold-1, fold-2, ...
  std::optional<tasks::BestRule> rule;  ///< the evaluation that counts; absent: the last one
  bool sets_every = false;              ///< eval.every is not given
  bool dry_run = false, quiet = false, as_json = false;
};
/// Trains the folds one after the other with `train`, writes DIR/folds.json and prints the table. A
/// fold that is finished is not trained again; one that was interrupted continues. Returns the exit
/// code of the first fold that failed, after which no other one is trained.
int train_folds(const FoldsCommand& command,
                const std::function<int(const std::vector<std::string>& line)>& train);

}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
// How tasks whose samples have labels open their data: the training set, and the validation set,
// which is other data or the tail of the training data.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/tasks/labels.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// Error{Data} unless the set has so many samples. `noun`: what they are, "texts".
template <class Set>
void require_samples(const Set& set,
                     std::int64_t wanted,
                     const std::string& what,
                     const char* noun) {
  TESSERA_REQUIRE(
      set.size() >= wanted,
      Data,
      fmt::format("{} has {} {}; at least {} are needed", what, set.size(), noun, wanted),
      "use more data, or a smaller batch");
}

/// `Set` is a data::Dataset with labels(), split_off(), tokens(), stats() and fingerprint().
/// read(names, key, labels) makes one of files that messages call `key`.
template <class Set, class Read>
data::Datasets open_labelled(const DataRequest& request,
                             const Labels& labels,
                             const char* noun,
                             Read read) {
  const data::DataOptions& options = request.options;
  TESSERA_REQUIRE(
      options.validation.empty() || options.validation_fraction == 0.0,
      Config,
      "data.validation and data.validation_fraction are both given",
      "keep data.validation (other data) or data.validation_fraction (the tail of data.train)");
  std::unique_ptr<Set> train = read(options.train, "data.train", labels);
  data::Datasets out;
  out.fingerprint = fmt::format(
      "{} {} {}", train->fingerprint(), options.shuffle, text::number(options.validation_fraction));
  out.train_stats = train->stats();
  if (options.validation_fraction > 0.0) {
    const auto kept = static_cast<std::int64_t>(
        std::floor(static_cast<double>(train->size()) * (1.0 - options.validation_fraction)));
    std::unique_ptr<Set> validation = train->split_off(train->size() - kept);
    require_samples(*validation, 1, "the tail of data.train", noun);
    out.validation_tokens = validation->tokens();
    out.validation = std::move(validation);
  } else if (!options.validation.empty()) {
    std::unique_ptr<Set> validation = read(options.validation, "data.validation", train->labels());
    require_samples(*validation, 1, "data.validation", noun);
    out.validation_tokens = validation->tokens();
    out.validation_stats = validation->stats();
    out.validation_fingerprint = validation->fingerprint();
    out.validation = std::move(validation);
  }
  require_samples(*train, std::max<std::int64_t>(request.min_samples, 1), "data.train", noun);
  out.train_tokens = train->tokens();
  out.train = std::move(train);
  return out;
}

/// Task::open_held_out() of a set that was read.
template <class Set>
data::OpenedDataset held_out_of(std::unique_ptr<Set> set,
                                const std::string& key,
                                const char* noun) {
  require_samples(*set, 1, key, noun);
  data::OpenedDataset out;
  out.tokens = set->tokens();
  out.stats = set->stats();
  out.fingerprint = set->fingerprint();
  out.dataset = std::move(set);
  return out;
}

/// Adds a problem where a label is named twice.
inline void check_label_names(std::vector<std::string> names,
                              config::Problems& problems,
                              const config::Origins& origins) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return;
  problems.add(origins.place("labels"),
               "labels",
               fmt::format("the label \"{}\" is named twice", *twice),
               "name every label once");
}

/// Options of a classifier's objective: how many labels there are, and their names unless these are
/// the ids.
inline json::Value options_of_labels(const Labels& labels) {
  json::Value out = json::Value::object(), names = json::Value::array();
  out["num_labels"] = json::Value::integer(labels.size());
  bool named = false;
  for (const std::string& name : labels.names()) {
    named |= name != std::to_string(names.items().size());
    names.push_back(json::Value::string(name));
  }
  if (named) out["labels"] = std::move(names);
  return out;
}

}  // namespace tessera::tasks

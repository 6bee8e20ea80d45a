// SPDX-License-Identifier: Apache-2.0
// The option --on-bad-record of commands that read records for a model.
#pragma once

#include <functional>
#include <string>

#include "tessera/cli/arguments.h"
#include "tessera/data/token_dataset.h"
#include "tessera/tasks/task.h"

namespace tessera::cli {

/// Handling of records that cannot be read, such as one with an empty text.
struct BadRecordFlag {
  std::string given;  ///< stop or skip; empty: the run's data.on_bad_record

  /// `skipped`: what the command does with a record that is skipped.
  void declare(Arguments& arguments, const std::string& skipped);
  /// Replaces the run's setting if the option was given. Throws Error{Config} for another word, and
  /// if the task reads no records.
  void apply(data::DataOptions& options, const tasks::Task& task) const;
};

/// Calls `read`. Fixes in its errors that name the key data.on_bad_record, which a command without
/// a configuration cannot set, name the option instead.
void naming_bad_record_flag(const std::function<void()>& read);

}  // namespace tessera::cli

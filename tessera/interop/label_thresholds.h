// SPDX-License-Identifier: Apache-2.0
// The thresholds of a classifier of several labels, in a file next to its weights.
#pragma once

#include <filesystem>
#include <vector>

#include "tessera/models/family.h"

namespace tessera::interop {

/// Writes the probability of each label above which it is predicted to thresholds.json in a
/// checkpoint or a Hugging Face folder, whose other readers ignore it. Throws Error{Io}.
void write_label_thresholds(const std::filesystem::path& folder,
                            const std::vector<double>& thresholds);
/// Adds the thresholds in the folder, if there are any, to the options of a classifier of several
/// labels.
/// Throws Error{Format} unless there is one between 0 and 1 for each label.
void add_label_thresholds(const std::filesystem::path& folder, models::ObjectiveChoice& objective);

}  // namespace tessera::interop

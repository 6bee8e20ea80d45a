// SPDX-License-Identifier: Apache-2.0
// The records of a training in three steps, divided between the steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::rlhf {

/// Writes the records of `names` (files, patterns and folders, as in data.train) into one file of
/// JSON lines per proportion and returns the paths of these files in `folder`: `part-1.jsonl`, ...
/// Each record is in exactly one part, and a part keeps the order of the records. A part has its
/// share of the records, rounded. Which ones depends on the seed, the proportions and the number of
/// records alone. Files that `folder` has of the same records are kept. `proportions`: at least one
/// number, none below 0, one above. Throws the errors of data::record_files() and
/// data::for_each_record(), Error{Data} if a part with a proportion above 0 has no record, and
/// Error{Io}. Memory: one byte a record, and the largest file.
std::vector<std::filesystem::path> write_parts(const std::vector<std::string>& names,
                                               const std::vector<double>& proportions,
                                               std::uint64_t seed,
                                               const std::filesystem::path& folder);

}  // namespace tessera::rlhf

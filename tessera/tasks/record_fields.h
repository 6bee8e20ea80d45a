// SPDX-License-Identifier: Apache-2.0
// How a training read its records, which a folder with the exported model keeps, so that the model
// predicts and is evaluated on such records without flags.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/config/json.h"
#include "tessera/data/token_dataset.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// The file in an exported folder.
inline constexpr const char* kRecordFieldsFile = "tessera_records.json";

/// Returns the contents of the file for the configuration of a run, whose defaults are written out:
/// {"task": "classify", "params": {"text_field": "review", ...}, "map": {...}, "text_field":
/// "text", "sequence_length": 128}. Nothing for tasks whose models write texts.
std::optional<std::string> record_fields_text(const json::Value& config);

/// Adds what the file in `folder` says to the options of a task and of its data, if it is that of
/// this task; options that are given stay. Returns the number of tokens of a sample; nothing if
/// there is no such file. Throws Error{Format} for a file that cannot be read.
std::optional<std::int64_t> use_record_fields(const std::filesystem::path& folder,
                                              TaskOptions& task,
                                              data::DataOptions& data);

}  // namespace tessera::tasks

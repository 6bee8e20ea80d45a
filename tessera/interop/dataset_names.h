// SPDX-License-Identifier: Apache-2.0
// Data sets by the names that people use for them ("trl-lib/Capybara", "glue"): files that are
// already on this machine. Nothing is fetched.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::interop {

/// The folders in which data sets are looked for by name: those of TESSERA_DATA, separated by
/// colons.
std::vector<std::filesystem::path> data_folders();
/// The cache of `datasets`: HF_DATASETS_CACHE, else HF_HOME/datasets, else
/// XDG_CACHE_HOME/huggingface/datasets, else ~/.cache/huggingface/datasets. Need not exist.
std::filesystem::path datasets_cache();

/// Returns the folder or file of a data set: the path itself if it exists, else in data_folders()
/// under its whole name or its last part, else in the cache of `datasets` (the newest version),
/// else the snapshot in Hugging Face's hub cache. `config`: a part of the data set ("mrpc" of
/// glue), or empty. std::nullopt: there is none.
std::optional<std::filesystem::path> find_dataset(const std::string& name,
                                                  const std::string& config);

/// Returns the files of a part of a data set, sorted: a folder named `split`, or files whose names
/// have it as a word ("glue-train.arrow", "train-00000-of-00001.parquet", "train.csv"). A folder
/// whose files name no part is the part "train" as a whole, as is a file. `split` may have a slice
/// behind it, and several of these a plus between them, as in `datasets`: "train[:10%]+test".
/// Empty: there is no such part, or slice. Throws the errors of data::parse_slice() and
/// data::slice_files().
std::vector<std::string> split_files(const std::filesystem::path& dataset,
                                     const std::string& split);

/// Names of files as a value of data.train: a text, or a list of several.
json::Value names_value(const std::vector<std::string>& names);

/// "fetch it with: hf download --repo-type dataset NAME; or name a file or folder".
std::string how_to_fetch_dataset(const std::string& name);

}  // namespace tessera::interop

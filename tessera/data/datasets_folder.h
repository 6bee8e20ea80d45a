// SPDX-License-Identifier: Apache-2.0
// Folders that Hugging Face's `datasets` saves (save_to_disk): one dataset, or one for each split.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// Whether the folder has state.json or dataset_dict.json of `datasets`.
bool is_datasets_folder(const std::string& folder);

/// Its Arrow files in the order of state.json; of several splits those of the first that has one
/// of the names. Error{Data} where there is none, naming those that there are, for files that are
/// not there, and for rows that an index chooses (which save_to_disk no longer writes).
std::vector<std::string> datasets_files(const std::string& folder,
                                        std::span<const std::string_view> splits);

}  // namespace tessera::data

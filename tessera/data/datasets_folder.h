// SPDX-License-Identifier: Apache-2.0
// Folders that Hugging Face's `datasets` saves (save_to_disk): one dataset, or one for each split.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// Returns whether the folder has state.json or dataset_dict.json of `datasets`.
bool is_datasets_folder(const std::string& folder);

/// Returns the folder's Arrow files in the order of state.json; with several splits, those of the
/// first that has one of the names. Throws Error{Data} if there is no such split (naming the
/// existing ones), if files are missing, and for rows chosen by an index (which save_to_disk no
/// longer writes).
std::vector<std::string> datasets_files(const std::string& folder,
                                        std::span<const std::string_view> splits);

}  // namespace tessera::data

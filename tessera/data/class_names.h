// SPDX-License-Identifier: Apache-2.0
// The names of classes that Hugging Face's `datasets` declares for columns of integers
// (ClassLabel).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::data {

/// For a field, the names of its integers 0, 1, ...; nested fields are written with dots. The
/// integers may be inside lists.
using ClassNames = std::map<std::string, std::shared_ptr<const std::vector<std::string>>>;

/// Returns what the features of a dataset declare: {"label": {"names": ["no", "yes"], "_type":
/// "ClassLabel"}, ...}. Ignores what is not a ClassLabel, and names that are not texts.
ClassNames class_names_in(const json::Value& features);

/// Returns what a file declares: `metadata` is the text that `datasets` keeps in it, {"info":
/// {"features": ...}}, and empty if there is none; then dataset_info.json in the file's folder
/// decides, {"features": ...}. A text that cannot be read declares nothing, with a warning.
ClassNames class_names_of(const std::string& file, std::string_view metadata);

}  // namespace tessera::data

// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/datasets_folder.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/text/small_file.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kState = "state.json";
constexpr const char* kSplits = "dataset_dict.json";

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw Error(Error::Kind::Data,
              fmt::format("{}: {}", path.string(), what),
              "save the dataset again: dataset.save_to_disk(\"folder\")");
}

std::vector<std::string> files_of_one(const fs::path& folder) {
  const fs::path path = folder / kState;
  const json::Value state = json::parse_strict(text::read_small_file(path), path.string());
  const json::Value* const files = state.find("_data_files");
  if (files == nullptr || !files->is_array()) refuse(path, "it names no _data_files");
  const json::Value* const chosen = state.find("_indices_data_files");
  if (chosen != nullptr && chosen->is_array() && !chosen->items().empty())
    refuse(path, "an index chooses its rows, which is not read");
  std::vector<std::string> out;
  for (const json::Value& file : files->items()) {
    const json::Value* const name = file.find("filename");
    if (name == nullptr || !name->is_string() ||
        fs::path(name->as_string()).filename() != name->as_string())
      refuse(path, "a file has no plain name");
    out.push_back((folder / name->as_string()).string());
    if (!is_file(out.back())) refuse(path, fmt::format("there is no {}", name->as_string()));
  }
  if (out.empty()) refuse(path, "it names no files");
  return out;
}

}  // namespace

bool is_datasets_folder(const std::string& folder) {
  const fs::path path = folder;
  return is_file(path / kSplits) || (is_file(path / kState) && is_file(path / "dataset_info.json"));
}

std::vector<std::string> datasets_files(const std::string& folder,
                                        std::span<const std::string_view> splits) {
  const fs::path path = fs::path(folder) / kSplits;
  if (!is_file(path)) return files_of_one(folder);
  const json::Value said = json::parse_strict(text::read_small_file(path), path.string());
  const json::Value* const names = said.find("splits");
  if (names == nullptr || !names->is_array()) refuse(path, "it names no splits");
  std::vector<std::string> there;
  for (const json::Value& name : names->items()) {
    if (!name.is_string() || fs::path(name.as_string()).filename() != name.as_string())
      refuse(path, "a split has no plain name");
    there.push_back(name.as_string());
  }
  for (const std::string_view split : splits) {
    if (std::ranges::find(there, split) != there.end())
      return files_of_one(fs::path(folder) / split);
  }
  throw Error(
      Error::Kind::Data,
      fmt::format("{} has no split {}; it has {}", folder, splits.front(), text::join(there, ", ")),
      "name the folder of one of its splits");
}

}  // namespace tessera::data

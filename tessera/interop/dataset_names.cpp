// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/dataset_names.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/data/records.h"
#include "tessera/data/slices.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostEntries = 100'000;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// The entries of a folder, without hidden ones, sorted.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end;
       !failed && at != end && out.size() < kMostEntries;
       at.increment(failed)) {
    if (!at->path().filename().string().starts_with('.')) out.push_back(at->path());
  }
  std::ranges::sort(out);
  return out;
}

bool is_data_file(const fs::path& path) {
  static constexpr auto kEndings = std::to_array<std::string_view>({".arrow",
                                                                    ".parquet",
                                                                    ".jsonl",
                                                                    ".json",
                                                                    ".csv",
                                                                    ".tsv",
                                                                    ".txt",
                                                                    ".ndjson",
                                                                    ".conll",
                                                                    ".gz",
                                                                    ".zst",
                                                                    ".feather"});
  const std::string name = path.filename().string();
  static constexpr auto kOthers = std::to_array<std::string_view>(
      {"dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json"});
  if (std::ranges::find(kOthers, std::string_view(name)) != kOthers.end()) return false;
  std::error_code ignored;
  return std::ranges::any_of(kEndings, [&](std::string_view end) { return name.ends_with(end); }) &&
         fs::is_regular_file(path, ignored);
}

// The words of a name, "glue-train" -> glue, train.
bool has_word(const std::string& name, const std::string& word) {
  std::string words = text::lower(name.substr(0, name.find('.')));
  std::ranges::replace(words, '_', '-');
  const std::vector<std::string> parts = text::split(words, '-');
  std::string wanted = text::lower(word);
  std::ranges::replace(wanted, '_', '-');
  if (std::ranges::find(parts, wanted) != parts.end()) return true;
  // A part whose name has several words, such as validation_matched.
  return wanted.find('-') != std::string::npos &&
         ("-" + words + "-").find("-" + wanted + "-") != std::string::npos;
}

bool names_a_part(const fs::path& file) {
  for (const char* part : {"train", "validation", "valid", "val", "dev", "eval", "test"}) {
    if (has_word(file.filename().string(), part)) return true;
  }
  return false;
}

// datasets writes NAME/CONFIG/VERSION/HASH; the newest of several.
std::optional<fs::path> in_datasets_cache(const std::string& name, const std::string& config) {
  std::string folder = name;
  const std::size_t slash = folder.find('/');
  if (slash != std::string::npos) folder.replace(slash, 1, "___");
  const fs::path top = datasets_cache() / folder;
  if (!is_folder(top)) return std::nullopt;
  std::optional<fs::path> newest;
  fs::file_time_type time;
  for (const fs::path& of_config : entries_of(top)) {
    const std::string config_name = of_config.filename().string();
    if (!config.empty() && config_name != config && !config_name.starts_with(config + "-"))
      continue;
    for (const fs::path& version : entries_of(of_config)) {
      for (const fs::path& hash : entries_of(version)) {
        const std::vector<fs::path> files = entries_of(hash);
        std::error_code failed;
        const fs::file_time_type written = fs::last_write_time(hash, failed);
        if (failed || (newest && written <= time) || std::ranges::none_of(files, is_data_file))
          continue;
        newest = hash;
        time = written;
      }
    }
  }
  return newest;
}

std::optional<fs::path> in_hub_cache(const std::string& name) {
  std::string folder = "datasets--";
  for (const char c : name)
    folder += c == '/' ? std::string("--") : std::string(1, c);
  const fs::path repository = hub::hub_cache() / folder;
  std::string commit = "main";
  try {
    if (is_there(repository / "refs" / "main"))
      commit = text::trim(files::read(repository / "refs" / "main"));
  } catch (const Error&) {
    return std::nullopt;
  }
  const fs::path snapshot = repository / "snapshots" / commit;
  if (commit.find('/') != std::string::npos || !is_folder(snapshot)) return std::nullopt;
  return snapshot;
}

// The folder of a configuration, if there is one of its name.
fs::path with_config(const fs::path& folder, const std::string& config) {
  const fs::path below = folder / config;
  return !config.empty() && is_folder(below) ? below : folder;
}

void add_files(const fs::path& folder,
               const std::string& split,
               int depth,
               std::vector<std::string>& out) {
  for (const fs::path& entry : entries_of(folder)) {
    if (is_folder(entry)) {
      if (entry.filename().string() == split)
        out.push_back(entry.string());
      else if (depth > 0)
        add_files(entry, split, depth - 1, out);
    } else if (is_data_file(entry) && has_word(entry.filename().string(), split)) {
      out.push_back(entry.string());
    }
  }
}

bool has_parts(const fs::path& folder, int depth) {
  for (const fs::path& entry : entries_of(folder)) {
    if (is_folder(entry)) {
      if (names_a_part(entry) || (depth > 0 && has_parts(entry, depth - 1))) return true;
    } else if (is_data_file(entry) && names_a_part(entry)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<fs::path> data_folders() {
  std::vector<fs::path> out;
  for (const std::string& part : text::split(variable("TESSERA_DATA"), ':')) {
    if (!part.empty()) out.emplace_back(part);
  }
  return out;
}

fs::path datasets_cache() {
  if (const std::string value = variable("HF_DATASETS_CACHE"); !value.empty()) return value;
  if (const std::string home = variable("HF_HOME"); !home.empty())
    return fs::path(home) / "datasets";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface" / "datasets";
  return fs::path(variable("HOME")) / ".cache" / "huggingface" / "datasets";
}

std::optional<fs::path> find_dataset(const std::string& name, const std::string& config) {
  if (name.empty()) return std::nullopt;
  if (is_there(name)) return is_folder(name) ? with_config(name, config) : fs::path(name);
  if (!hub::is_model_name(name)) return std::nullopt;
  const std::string last = name.substr(name.rfind('/') + 1);
  for (const fs::path& folder : data_folders()) {
    for (const std::string& part : {name, last}) {
      if (is_folder(folder / part)) return with_config(folder / part, config);
      for (const char* ending : {".jsonl", ".json", ".csv", ".parquet", ".tsv", ".txt"}) {
        if (is_there(folder / (part + ending))) return folder / (part + ending);
      }
    }
  }
  if (auto found = in_datasets_cache(name, config)) return found;
  const auto snapshot = in_hub_cache(name);
  if (!snapshot) return std::nullopt;
  return with_config(*snapshot, config);
}

namespace {

// The files of a part without brackets.
std::vector<std::string> files_of_part(const fs::path& dataset, const std::string& split) {
  constexpr int kLevels = 3;
  std::vector<std::string> out;
  if (!is_folder(dataset)) {
    if (split == "train" && is_there(dataset)) out.push_back(dataset.string());
    return out;
  }
  add_files(dataset, split, kLevels, out);
  if (out.empty() && split == "train" && !has_parts(dataset, kLevels))
    out.push_back(dataset.string());
  return out;
}

}  // namespace

std::vector<std::string> split_files(const fs::path& dataset, const std::string& split) {
  std::vector<std::string> out;
  for (const std::string& term : text::split(split, '+')) {
    const std::string part(text::trim(term));
    const std::size_t open = part.ends_with(']') ? part.find('[') : part.npos;
    std::vector<std::string> files = files_of_part(dataset, part.substr(0, open));
    if (files.empty()) return {};
    if (const auto slice =
            open == part.npos ? std::nullopt : data::parse_slice(part.substr(open))) {
      if (files.size() > 1) files = data::record_files(files, data::Split::Train);
      files = data::slice_files(files, *slice);
    } else if (open != part.npos) {
      return {};
    }
    out.insert(out.end(), files.begin(), files.end());
  }
  return out;
}

json::Value names_value(const std::vector<std::string>& names) {
  if (names.size() == 1) return json::Value::string(names.front());
  json::Value out = json::Value::array();
  for (const std::string& name : names)
    out.push_back(json::Value::string(name));
  return out;
}

std::string how_to_fetch_dataset(const std::string& name) {
  if (!hub::is_model_name(name)) return "name a file or folder that exists";
  return fmt::format(
      "fetch it with: hf download --repo-type dataset {}; or name a file or folder, or set "
      "TESSERA_DATA to the folder that holds it",
      name);
}

}  // namespace tessera::interop

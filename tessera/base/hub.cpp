// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/hub.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"

namespace tessera::hub {
namespace {

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kPrefix = "models--";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool is_part(std::string_view part) {
  constexpr std::size_t kLongest = 96;  // as on Hugging Face
  if (part.empty() || part.size() > kLongest) return false;
  const auto alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  if (!alphanumeric(part.front())) return false;
  return std::ranges::all_of(
      part, [&](char c) { return alphanumeric(c) || c == '-' || c == '_' || c == '.'; });
}

struct Name {
  std::string model;  ///< "owner/model"
  std::string revision = "main";
};

std::optional<Name> parsed(const std::string& text) {
  Name out{.model = text};
  const std::size_t at = text.find('@');
  if (at != std::string::npos) {
    out.model = text.substr(0, at);
    out.revision = text.substr(at + 1);
    if (!is_part(out.revision)) return std::nullopt;
  }
  const std::vector<std::string> parts = text::split(out.model, '/');
  if (parts.size() > 2 || !std::ranges::all_of(parts, is_part)) return std::nullopt;
  return out;
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool is_model(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / kConfig, ignored);
}

/// The commit of a revision in a repository of the cache: a name in refs/, or the commit itself.
std::string commit_of(const fs::path& repository, const std::string& revision) {
  constexpr std::uintmax_t kLongest = 128;
  const fs::path file = repository / "refs" / revision;
  std::error_code failed;
  const std::uintmax_t size = fs::file_size(file, failed);
  if (failed || size > kLongest) return revision;
  try {
    const std::string commit(text::trim(files::read(file)));
    return is_part(commit) ? commit : revision;
  } catch (const Error&) {
    return revision;
  }
}

std::optional<fs::path> in_cache(const Name& name) {
  std::string folder(kPrefix);
  for (const char c : name.model)
    folder += c == '/' ? "--" : std::string(1, c);
  const fs::path repository = hub_cache() / folder;
  if (!is_folder(repository)) return std::nullopt;
  fs::path snapshot = repository / "snapshots" / commit_of(repository, name.revision);
  if (!is_folder(snapshot)) return std::nullopt;
  return snapshot;
}

std::vector<fs::path> folders_in(const fs::path& folder) {
  constexpr std::size_t kMost = 100'000;
  std::vector<fs::path> out;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end && out.size() < kMost;
       at.increment(failed)) {
    if (!at->path().filename().string().starts_with('.') && is_folder(at->path()))
      out.push_back(at->path());
  }
  std::ranges::sort(out);
  return out;
}

void add_models_of_folder(const fs::path& folder, std::vector<LocalModel>& out) {
  for (const fs::path& first : folders_in(folder)) {
    if (is_model(first)) {
      out.push_back({first.filename().string(), first});
      continue;
    }
    for (const fs::path& second : folders_in(first)) {
      if (is_model(second))
        out.push_back({first.filename().string() + "/" + second.filename().string(), second});
    }
  }
}

/// "models--owner--model" -> "owner/model". A name with "--" of its own is ambiguous; its first
/// pair is the slash.
std::string name_of_repository(const std::string& folder) {
  std::string out = folder.substr(kPrefix.size());
  const std::size_t slash = out.find("--");
  if (slash != std::string::npos) out.replace(slash, 2, "/");
  return out;
}

std::optional<fs::path> newest_snapshot(const fs::path& repository) {
  const fs::path main = repository / "snapshots" / commit_of(repository, "main");
  if (is_model(main)) return main;
  std::optional<fs::path> newest;
  fs::file_time_type time;
  for (const fs::path& snapshot : folders_in(repository / "snapshots")) {
    std::error_code failed;
    const fs::file_time_type written = fs::last_write_time(snapshot, failed);
    if (failed || !is_model(snapshot) || (newest && written <= time)) continue;
    newest = snapshot;
    time = written;
  }
  return newest;
}

void add_models_of_cache(std::vector<LocalModel>& out) {
  for (const fs::path& repository : folders_in(hub_cache())) {
    const std::string folder = repository.filename().string();
    if (!folder.starts_with(kPrefix)) continue;
    if (const auto snapshot = newest_snapshot(repository))
      out.push_back({name_of_repository(folder), *snapshot});
  }
}

}  // namespace

std::vector<fs::path> model_folders() {
  std::vector<fs::path> out;
  for (const std::string& part : text::split(variable("TESSERA_MODELS"), ':')) {
    if (!part.empty()) out.emplace_back(part);
  }
  return out;
}

fs::path hub_cache() {
  for (const char* const name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string value = variable(name); !value.empty()) return value;
  }
  if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface" / "hub";
  return fs::path(variable("HOME")) / ".cache" / "huggingface" / "hub";
}

bool is_model_name(const std::string& text) {
  return parsed(text).has_value();
}

std::optional<fs::path> find_model(const std::string& text) {
  const std::optional<Name> name = parsed(text);
  if (!name) return std::nullopt;
  const std::string last = name->model.substr(name->model.find('/') + 1);
  for (const fs::path& folder : model_folders()) {
    for (const std::string& part : {name->model, last}) {
      if (is_folder(folder / part)) return folder / part;
    }
  }
  return in_cache(*name);
}

fs::path model_path(const std::string& text) {
  std::error_code ignored;
  if (fs::exists(text, ignored)) return text;
  return find_model(text).value_or(fs::path(text));
}

namespace {

/// The fix for "runs/fine" where a folder `runs` of the working directory is meant; std::nullopt if
/// `name` is rather one on Hugging Face.
std::optional<std::string> fix_in_folder(const fs::path& name) {
  const fs::path parent = name.parent_path();
  if (parent.empty()) return std::nullopt;
  if (!is_folder(parent)) {
    if (parent != "runs") return std::nullopt;
    return "there is no folder runs here: begin a training (tessera train CONFIG), or go to the "
           "folder in which it was begun";
  }
  std::vector<std::string> others;
  std::error_code failed;
  for (fs::directory_iterator at(parent, failed), end; !failed && at != end; at.increment(failed))
    others.push_back(at->path().filename().string());
  std::ranges::sort(others);
  return fmt::format("the folder {} {}",
                     parent.string(),
                     others.empty()
                         ? "is empty"
                         : fmt::format("has no {}: {}",
                                       name.filename().string(),
                                       text::suggestion(name.filename().string(), others)));
}

}  // namespace

std::string how_to_fetch(const std::string& name) {
  const std::optional<Name> parts = parsed(name);
  if (!parts) return "name the folder of its files";
  if (const auto fix = fix_in_folder(name)) return *fix;
  const std::string revision = parts->revision == "main" ? "" : " --revision " + parts->revision;
  return fmt::format(
      "fetch it with: hf download {}{}; or name the folder of its files", parts->model, revision);
}

std::vector<LocalModel> local_models() {
  std::vector<LocalModel> out;
  for (const fs::path& folder : model_folders())
    add_models_of_folder(folder, out);
  add_models_of_cache(out);
  std::ranges::stable_sort(out, {}, &LocalModel::name);
  return out;
}

std::uint64_t bytes_of_folder(const fs::path& folder) {
  std::uint64_t out = 0;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code unknown;
    if (!at->is_regular_file(unknown)) continue;
    const std::uintmax_t size = at->file_size(unknown);
    if (!unknown) out += size;
  }
  return out;
}

}  // namespace tessera::hub

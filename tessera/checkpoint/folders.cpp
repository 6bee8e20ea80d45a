// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/folders.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/process.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/node_parts.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-", kReplaced = ".replaced-step-", kTemp = ".tmp-step-",
                           kBest = "best";

/// Parses all of `digits` as a number.
std::optional<std::int64_t> number(std::string_view digits) {
  std::int64_t value = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (failed != std::errc() || end != digits.data() + digits.size() || value < 0)
    return std::nullopt;
  return value;
}

std::vector<fs::path> entries(const fs::path& root) {
  std::error_code failed;
  std::vector<fs::path> out;
  for (fs::directory_iterator at(root, failed), end; !failed && at != end; at.increment(failed)) {
    out.push_back(at->path());
  }
  if (failed && failed != std::errc::no_such_file_or_directory) {
    throw Error(Error::Kind::Io,
                fmt::format("cannot list {}: {}", root.string(), failed.message()));
  }
  return out;
}

/// Returns the process that a temporary folder, or a draft of `latest` or `best`, belongs to.
std::optional<std::int64_t> owner_of(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const std::string_view draft : {"latest.tmp-", "best.tmp-"}) {  // of files::write_atomic()
    if (name.starts_with(draft)) return number(std::string_view(name).substr(draft.size()));
  }
  const auto dash = name.rfind('-');
  if (!name.starts_with(kTemp) || dash < kTemp.size()) return std::nullopt;
  return number(std::string_view(name).substr(dash + 1));
}

/// Returns whether another process may still be working on an entry with this number.
bool belongs_to_another(std::int64_t pid) {
  return pid != ::getpid() && is_running(pid);
}

/// Returns the checkpoint that a file `best` or `latest` names.
std::optional<fs::path> named_by(const fs::path& file) {
  constexpr std::uintmax_t kMostBytes = 64;
  const std::string name = file.filename().string();
  std::error_code failed;
  if ((name != kBest && name != "latest") || !fs::is_regular_file(file, failed) ||
      fs::file_size(file, failed) > kMostBytes || failed)
    return std::nullopt;
  const std::string content = files::read(file);
  const fs::path folder = file.parent_path() / text::trim(content);
  const auto step = step_of(folder);
  if (!step || folder.filename() != step_name(*step) || !is_checkpoint(folder)) return std::nullopt;
  return folder;
}

}  // namespace

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:08}", kStep, step);
}
std::string replaced_name(std::int64_t step) {
  return fmt::format("{}{:08}", kReplaced, step);
}
std::string temp_name(std::int64_t step, std::int64_t pid) {
  return fmt::format("{}{:08}-{}", kTemp, step, pid);
}

std::string node_temp_name(std::int64_t step, int node, std::int64_t pid) {
  return fmt::format("{}{:08}-node-{:05}-{}", kTemp, step, node, pid);
}
std::string draft_name(const std::string& name, std::int64_t pid) {
  return fmt::format(".tmp-{}-{}", name, pid);
}

std::optional<std::int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  for (const std::string_view prefix : {kStep, kReplaced}) {
    if (name.starts_with(prefix)) return number(std::string_view(name).substr(prefix.size()));
  }
  return std::nullopt;
}

bool is_checkpoint(const fs::path& folder) {
  std::error_code failed;
  return fs::exists(folder / kManifestName, failed) || !node_parts_in(folder).empty();
}

std::vector<fs::path> list(const fs::path& root) {
  std::map<std::int64_t, fs::path> by_step;
  for (const fs::path& folder : entries(root)) {
    const auto step = step_of(folder);
    if (!step || !is_checkpoint(folder)) continue;
    const bool replaced = folder.filename().string().starts_with(kReplaced);
    if (!replaced || by_step.count(*step) == 0) by_step[*step] = folder;
  }
  std::vector<fs::path> out;
  for (const auto& [step, folder] : by_step)
    out.push_back(folder);
  return out;
}

std::optional<fs::path> newest(const fs::path& root) {
  const auto all = list(root);
  return all.empty() ? std::nullopt : std::optional(all.back());
}

std::vector<fs::path> found_at(const fs::path& path) {
  std::error_code failed;
  if (const auto named = named_by(path)) return {*named};
  if (!fs::is_directory(path, failed)) return {};  // a file has no entries to list
  if (is_checkpoint(path)) return {path};
  auto of_run = list(path / kFolderOfRun);
  return of_run.empty() ? list(path) : of_run;
}

std::optional<fs::path> newest_at(const fs::path& path) {
  const auto all = found_at(path);
  return all.empty() ? std::nullopt : std::optional(all.back());
}

bool is_ours(const fs::path& path) {
  std::error_code failed;
  return fs::is_directory(path / kFolderOfRun, failed) || newest_at(path).has_value();
}

void remove_stale_folders(Storage& storage, const fs::path& root) {
  for (const fs::path& folder : entries(root)) {
    const auto owner = owner_of(folder);
    if (owner && !belongs_to_another(*owner)) storage.remove(folder);
    const bool replaced = folder.filename().string().starts_with(kReplaced) && step_of(folder);
    if (!replaced) continue;
    const fs::path successor = root / step_name(*step_of(folder));
    if (is_checkpoint(successor)) {
      storage.remove(folder);
    } else if (!fs::exists(successor)) {
      storage.rename(folder, successor);
    }
  }
}

void remove_stale_drafts(Storage& storage, const fs::path& target) {
  const std::string begin = draft_name(target.filename().string(), 0);
  const std::string_view prefix = std::string_view(begin).substr(0, begin.size() - 1);
  try {
    for (const fs::path& path : entries(target.parent_path())) {
      const std::string name = path.filename().string();
      if (!name.starts_with(prefix)) continue;
      const auto owner = number(std::string_view(name).substr(prefix.size()));
      if (owner && !belongs_to_another(*owner)) storage.remove(path);
    }
  } catch (const Error& error) {
    log::warn(error.text());  // a leftover draft does no harm
  }
}

void name_best(const fs::path& root, std::optional<std::int64_t> step) {
  const fs::path file = root / kBest;
  std::error_code failed;
  if (!step) {
    if (fs::exists(file, failed)) real_storage().remove(file);
    return;
  }
  const auto before = named_by(file);
  if (!before || step_of(*before) != step)
    real_storage().write_atomic(file, step_name(*step) + "\n");
}

void prune(Storage& storage, const fs::path& root, int keep, std::optional<std::int64_t> spared) {
  TESSERA_REQUIRE(keep >= 1,
                  Config,
                  fmt::format("cannot keep {} checkpoints: the newest is always kept", keep),
                  "keep at least 1");
  remove_stale_folders(storage, root);
  const auto all = list(root);
  std::vector<fs::path> going;
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
    if (step_of(all[i]) == spared) continue;
    // Renamed and synced first: a partly removed folder must not look complete.
    going.push_back(root / temp_name(*step_of(all[i]), ::getpid()));
    storage.rename(all[i], going.back());
  }
  if (!going.empty()) storage.sync_folder(root);
  for (const fs::path& folder : going)
    storage.remove(folder);
}

void prune(const fs::path& root, int keep, std::optional<std::int64_t> spared) {
  prune(real_storage(), root, keep, spared);
}

}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/run_status.h"

#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/config/json.h"

namespace tessera::report {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 20;  // of a small file of a run

/// Returns null for a file that does not exist, is being replaced, or is damaged.
json::Value read_small(const fs::path& path) {
  try {
    std::error_code failure;
    if (!fs::is_regular_file(path, failure) || fs::file_size(path, failure) > kMostBytes) return {};
    return json::parse_strict(files::read(path), path.string());
  } catch (const Error&) {
    return {};
  }
}

const json::Value* member_of(const json::Value& value, const char* key) {
  return value.is_object() ? value.find(key) : nullptr;
}

/// The owner of the run, if its process is gone; nothing if it is alive or cannot be asked for.
std::optional<std::string> owner_that_is_gone(const fs::path& folder) {
  try {
    const fs::path lock = folder / "lock";
    const auto holder = files::Lock::holder(lock);
    // Children of the owner may hold the lock for a moment longer.
    if (holder && !files::Lock::owner_is_gone(*holder)) return std::nullopt;
    std::error_code failure;
    const bool known = fs::is_regular_file(lock, failure) && fs::file_size(lock, failure) < 4096;
    std::string owner = holder ? *holder : known ? files::read(lock) : std::string();
    while (!owner.empty() && owner.back() == '\n')
      owner.pop_back();
    return owner;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// The ranks that the newest table of ranks has; 1 if there is none.
std::size_t num_ranks_of(const fs::path& folder) {
  const json::Value table = read_small(folder / "ranks.json");
  const json::Value* const ranks = member_of(table, "ranks");
  return ranks != nullptr && ranks->is_array() && !ranks->items().empty() ? ranks->items().size()
                                                                          : 1;
}

std::string command_of(const fs::path& folder) {
  const std::size_t ranks = num_ranks_of(folder);
  const auto newest = checkpoint::newest(folder / checkpoint::kFolderOfRun);
  const auto step = newest ? checkpoint::step_of(*newest) : std::nullopt;
  return fmt::format("tessera train {}{} ({})",
                     (folder / "config.json").string(),
                     ranks > 1 ? fmt::format(" -n {}", ranks) : "",
                     step ? fmt::format("goes on after step {}", *step)
                          : "begins again: the run has no complete checkpoint");
}

}  // namespace

RunStatus run_status(const fs::path& folder) {
  RunStatus out;
  const json::Value status = read_small(folder / "status.json");
  const json::Value *const state = member_of(status, "state"),
                           *const code = member_of(status, "exit_code"),
                           *const message = member_of(status, "message");
  if (state != nullptr && state->is_string()) out.state = state->as_string();
  if (message != nullptr && message->is_string()) out.message = message->as_string();
  if (code != nullptr && code->is_number()) out.exit_code = code->as_integer();
  if (out.state == "running") {
    out.exit_code.reset();
    if (const auto owner = owner_that_is_gone(folder)) {
      out.state = "killed";
      out.message = owner->empty() ? "no process of this run is left"
                                   : fmt::format("its process is gone ({})", *owner);
    }
  }
  if (out.state == "killed" || out.state == "stopped") out.go_on = command_of(folder);
  return out;
}

std::string words_of(const RunStatus& status) {
  if (status.go_on.empty()) return status.message;
  return (status.message.empty() ? "" : status.message + "; ") + "to continue: " + status.go_on;
}

}  // namespace tessera::report

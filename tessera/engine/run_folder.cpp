// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/run_folder.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/writable.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/engine/metrics.h"

namespace tessera::engine {
namespace fs = std::filesystem;

namespace {

// The ranks of a killed supervisor hold its lock until the kernel has ended them too.
constexpr double kOrphansS = 10.0;
constexpr std::chrono::milliseconds kRetry{50};

/// `folder` is the run folder itself, or a folder inside or above it.
[[noreturn]] void refuse_unwritable(const fs::path& path,
                                    const fs::path& folder,
                                    const std::string& why,
                                    const std::string& fix = "choose another run.dir") {
  throw Error(Error::Kind::Io,
              fmt::format("cannot write to the run folder {}: {}{}",
                          path.string(),
                          folder == path ? "" : folder.string() + ": ",
                          why),
              fix);
}

void require_writable(const fs::path& path, const fs::path& folder) {
  if (const auto obstacle = files::obstacle_to_files_in(folder))
    refuse_unwritable(path, folder, *obstacle);
}

/// Returns true if the folder did not exist before.
bool make_folder(const fs::path& path, const fs::path& folder) {
  std::error_code failure;
  const bool made = fs::create_directories(folder, failure);
  if (failure == std::errc::no_space_on_device) {
    refuse_unwritable(
        path, folder, failure.message(), "free some disk space, or choose another run.dir");
  }
  if (failure) refuse_unwritable(path, folder, failure.message());
  return made;
}

/// Replaces the file's content by `now` in place, which needs no more room on a full disk; the
/// excess of the old content is truncated last.
bool overwrite(const fs::path& path, const std::string& now) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;
  const auto bytes = static_cast<ssize_t>(now.size());
  const bool done = ::pwrite(fd, now.data(), now.size(), 0) == bytes && ::ftruncate(fd, bytes) == 0;
  ::close(fd);
  return done;
}

/// If there is no room for a second file, the status is overwritten in place, because it must not
/// say "running" forever.
void replace_status(const fs::path& path, const json::Value& status) {
  const std::string text = status.dump(2) + '\n';
  try {
    files::write_atomic(path, text);
  } catch (const Error&) {
    if (!overwrite(path, text)) throw;
  }
}

std::string state_in(const json::Value& status) {
  const json::Value* const state = status.find("state");
  return state != nullptr && state->is_string() ? state->as_string() : "";
}

[[noreturn]] void refuse_locked(const fs::path& path, const std::string& owner) {
  throw Error(Error::Kind::Io,
              fmt::format("the run folder {} is in use by {}", path.string(), owner),
              "wait for that run, stop it, or choose another run.dir");
}

// Suffix of the folder of a training that was moved aside: PATH.old-1.
constexpr std::string_view kOld = "old-";

bool goes_aside(const std::string& name) {
  return name != "lock" && !name.starts_with(kOld);
}

template <class Name>
fs::path first_free(Name name) {
  for (int n = 1;; ++n) {
    std::error_code unusable;  // such as a name that is too long; the rename reports it
    if (fs::path path = name(n); !fs::exists(path, unusable)) return path;
  }
}

/// Moves all of `going` or none: if one cannot be moved, the previous ones are moved back.
void move_into(const fs::path& target, const std::vector<fs::path>& going) {
  std::size_t moved = 0;
  try {
    for (; moved < going.size(); ++moved)
      fs::rename(going[moved], target / going[moved].filename());
  } catch (const fs::filesystem_error&) {
    std::error_code ignored;  // what was moved there can be moved back
    while (moved-- > 0)
      fs::rename(target / going[moved].filename(), going[moved], ignored);
    fs::remove(target, ignored);
    throw;
  }
}

template <class Move>
std::optional<fs::path> moving(const fs::path& run, Move move) {
  try {
    return move();
  } catch (const fs::filesystem_error& error) {
    throw Error(Error::Kind::Io,
                fmt::format("cannot move what is in {} aside: {}", run.string(), error.what()),
                "move it yourself, or choose another run.dir");
  }
}

}  // namespace

RunFolder::RunFolder(const fs::path& path, Access access)
    : path_(path.has_filename() ? path : path.parent_path()) {
  if (access == Access::Own) own();
  if (access == Access::Check) check();
}

RunFolder::~RunFolder() {
  if (!created_ || prepared_) return;
  lock_->remove_file();
  ::rmdir(path_.c_str());
}

void RunFolder::own() {
  created_ = make_folder(path_, path_);
  require_writable(path_, path_);
  require_writable_inside();
  std::string owner;
  const double give_up = now_s() + kOrphansS;
  while (lock_ == nullptr) {
    lock_ = files::Lock::try_acquire(path_ / "lock", &owner);
    if (lock_ != nullptr) return;
    if (!files::Lock::owner_is_gone(owner) || now_s() > give_up) refuse_locked(path_, owner);
    std::this_thread::sleep_for(kRetry);
  }
}

void RunFolder::check() const {
  require_writable(path_, files::nearest_existing(path_));
  require_writable_inside();
  const auto owner = files::Lock::holder(path_ / "lock");
  if (owner && !files::Lock::owner_is_gone(*owner)) refuse_locked(path_, *owner);
}

/// Checks what an earlier run, or another program, has left in the folder.
void RunFolder::require_writable_inside() const {
  // The folder itself may be a link to another disk.
  std::error_code unknown;
  files::require_own_folder(fs::weakly_canonical(path_, unknown));
  for (const fs::path& folder : {logs(), checkpoints()}) {
    std::error_code failure;
    if (fs::exists(fs::symlink_status(folder, failure))) require_writable(path_, folder);
  }
  files::require_own_folder(logs());
}

void RunFolder::prepare(const json::Value& resolved) const {
  prepared_ = true;
  make_folder(path_, logs());
  make_folder(path_, checkpoints());
  files::write_atomic(path_ / "config.json", resolved.dump(2) + '\n');
}

fs::path RunFolder::status_file() const {
  return path_ / "status.json";
}

void RunFolder::write_status(const std::string& state,
                             std::int64_t step,
                             int exit_code,
                             const std::string& message) const {
  json::Value status = json::Value::object();
  status["state"] = json::Value::string(state);
  status["step"] = json::Value::integer(step);
  status["exit_code"] = json::Value::integer(exit_code);
  status["message"] = json::Value::string(message);
  replace_status(status_file(), status);
}

void RunFolder::finish_status(int exit_code) const {
  if (!fs::exists(status_file())) return;
  json::Value status = json::parse_strict(files::read(status_file()), "status.json");
  const std::string before = state_in(status);
  const bool stopped =
      exit_code == kExitInterrupted || exit_code == kExitTerminated || exit_code == kExitStopped;
  if (stopped) {
    status["state"] = json::Value::string("stopped");
  } else if (before == "running") {
    status["state"] = json::Value::string(exit_code == kExitOk ? "finished" : "failed");
  }
  status["exit_code"] = json::Value::integer(exit_code);
  replace_status(status_file(), status);
}

void RunFolder::note_finished(std::int64_t step) const {
  if (!fs::exists(status_file())) return;
  const json::Value status = json::parse_strict(files::read(status_file()), "status.json");
  if (state_in(status) != "finished") write_status("finished", step, kExitOk, "");
}

std::int64_t RunFolder::last_metric_step() const {
  return read_losses(path_ / "metrics.jsonl").last_step;
}

bool RunFolder::has_training() const {
  return fs::exists(path_ / "metrics.jsonl") || !checkpoint::list(checkpoints()).empty();
}

bool RunFolder::holds(const fs::path& checkpoint) const {
  std::error_code failure;
  return fs::equivalent(
      fs::weakly_canonical(checkpoint, failure).parent_path(), checkpoints(), failure);
}

/// First created inside the folder: if this can be renamed, so can the folder's contents.
fs::path RunFolder::make_aside() const {
  const fs::path here = fs::canonical(path_);
  const fs::path inside = first_free([&](int n) { return here / fmt::format("{}{}", kOld, n); });
  const fs::path beside =
      first_free([&](int n) { return fmt::format("{}.{}{}", here.string(), kOld, n); });
  fs::create_directory(inside);
  std::error_code failure;
  fs::rename(inside, beside, failure);
  return failure ? inside : beside;
}

void RunFolder::require_own_contents() const {
  std::error_code unknown;
  const fs::path run = fs::weakly_canonical(path_, unknown), here = fs::current_path(unknown);
  const fs::path below = here.lexically_relative(run);
  const bool inside = !below.empty() && *below.begin() != "..";
  const auto contents = fs::directory_iterator(path_, unknown);
  const bool moves = std::any_of(fs::begin(contents), fs::end(contents), [](const auto& entry) {
    return goes_aside(entry.path().filename().string());
  });
  TESSERA_REQUIRE(!inside || !moves,
                  Io,
                  fmt::format("the run folder {} contains the current folder: starting over would "
                              "move all of its files aside",
                              run.string()),
                  "choose another run.dir, such as runs/my");
}

std::optional<fs::path> RunFolder::move_aside(const fs::path& spared) const {
  return moving(path_, [&]() -> std::optional<fs::path> {
    const fs::path inner =
        spared.empty() ? fs::path("..")
                       : fs::weakly_canonical(spared).lexically_relative(fs::canonical(path_));
    if (inner == ".") return std::nullopt;
    std::vector<fs::path> going;
    for (const auto& entry : fs::directory_iterator(path_)) {
      const std::string name = entry.path().filename().string();
      if (name != *inner.begin() && goes_aside(name)) going.push_back(entry.path());
    }
    if (going.empty()) return std::nullopt;
    const fs::path target = make_aside();
    move_into(target, going);
    return target;
  });
}

fs::path RunFolder::checkpoints() const {
  return path_ / checkpoint::kFolderOfRun;
}

std::optional<fs::path> RunFolder::move_later_aside(std::int64_t step) const {
  return moving(path_, [&]() -> std::optional<fs::path> {
    std::vector<fs::path> going;
    for (const fs::path& folder : checkpoint::list(checkpoints())) {
      if (*checkpoint::step_of(folder) > step) going.push_back(folder);
    }
    if (going.empty()) return std::nullopt;
    const fs::path target = make_aside();
    for (const char* name : {"metrics.jsonl", "rollouts.jsonl"}) {
      if (fs::exists(path_ / name)) fs::copy_file(path_ / name, target / name);
    }
    fs::create_directory(target / checkpoint::kFolderOfRun);
    move_into(target / checkpoint::kFolderOfRun, going);
    if (fs::exists(checkpoints() / "latest"))
      files::write_atomic(checkpoints() / "latest", checkpoint::step_name(step) + "\n");
    return target;
  });
}

fs::path RunFolder::logs() const {
  return path_ / "logs";
}

fs::path RunFolder::log_file(int rank) const {
  return logs() / fmt::format("rank_{:05d}.log", rank);
}

}  // namespace tessera::engine

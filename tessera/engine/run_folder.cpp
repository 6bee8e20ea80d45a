// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/run_folder.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/engine/metrics.h"

namespace tessera::engine {
namespace fs = std::filesystem;

namespace {

// The ranks of a supervisor that was killed hold its lock until the kernel has ended them too.
constexpr double kOrphansS = 10.0;
constexpr std::chrono::milliseconds kRetry{50};

[[noreturn]] void refuse_unwritable(const fs::path& path, const std::string& why) {
  throw Error(Error::Kind::Io,
              fmt::format("cannot write to the run folder {}: {}", path.string(), why),
              "choose another run.dir");
}

void require_writable(const fs::path& path, const fs::path& folder) {
  std::error_code failure;
  if (!fs::is_directory(folder, failure)) {
    refuse_unwritable(path, folder == path ? "not a folder" : folder.string() + " is not a folder");
  }
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    refuse_unwritable(path, std::strerror(errno));
}

[[noreturn]] void refuse_locked(const fs::path& path, const std::string& owner) {
  throw Error(Error::Kind::Io,
              fmt::format("the run folder {} is in use by {}", path.string(), owner),
              "wait for that run, stop it, or choose another run.dir");
}

// Of a training that was moved aside: PATH.old-1.
constexpr std::string_view kOld = "old-";

template <class Name>
fs::path first_free(Name name) {
  for (int n = 1;; ++n) {
    std::error_code unusable;  // as a name that is too long: renaming tells
    if (fs::path path = name(n); !fs::exists(path, unusable)) return path;
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
  std::error_code failure;
  created_ = fs::create_directories(path_, failure);
  if (failure) refuse_unwritable(path_, failure.message());
  require_writable(path_, path_);
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
  fs::path place = fs::absolute(path_);
  std::error_code failure;
  while (!fs::exists(fs::symlink_status(place, failure)) && place.has_relative_path())
    place = place.parent_path();
  require_writable(path_, place);
  const auto owner = files::Lock::holder(path_ / "lock");
  if (owner && !files::Lock::owner_is_gone(*owner)) refuse_locked(path_, *owner);
}

std::optional<json::Value> RunFolder::config() const {
  if (!fs::exists(path_ / "config.json")) return std::nullopt;
  return json::parse_strict(files::read(path_ / "config.json"), (path_ / "config.json").string());
}

void RunFolder::prepare(const json::Value& resolved) const {
  prepared_ = true;
  fs::create_directories(path_ / "logs");
  fs::create_directories(checkpoints());
  files::write_atomic(path_ / "config.json", resolved.dump(2) + '\n');
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
  files::write_atomic(path_ / "status.json", status.dump(2) + '\n');
}

void RunFolder::finish_status(int exit_code) const {
  if (!fs::exists(path_ / "status.json")) return;
  json::Value status = json::parse_strict(files::read(path_ / "status.json"), "status.json");
  const json::Value* state = status.find("state");
  const std::string before = state != nullptr && state->is_string() ? state->as_string() : "";
  const bool stopped =
      exit_code == kExitInterrupted || exit_code == kExitTerminated || exit_code == kExitStopped;
  if (stopped) {
    status["state"] = json::Value::string("stopped");
  } else if (before == "running") {
    status["state"] = json::Value::string(exit_code == kExitOk ? "finished" : "failed");
  }
  status["exit_code"] = json::Value::integer(exit_code);
  files::write_atomic(path_ / "status.json", status.dump(2) + '\n');
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

/// Made inside of the folder first: whether it can be renamed tells whether what is inside can.
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

std::optional<fs::path> RunFolder::move_aside(const fs::path& spared) const {
  return moving(path_, [&]() -> std::optional<fs::path> {
    const fs::path inner =
        spared.empty() ? fs::path("..")
                       : fs::weakly_canonical(spared).lexically_relative(fs::canonical(path_));
    if (inner == ".") return std::nullopt;
    std::vector<fs::path> going;
    for (const auto& entry : fs::directory_iterator(path_)) {
      const std::string name = entry.path().filename().string();
      if (name != "lock" && name != *inner.begin() && !name.starts_with(kOld))
        going.push_back(entry.path());
    }
    if (going.empty()) return std::nullopt;
    const fs::path target = make_aside();
    for (const fs::path& path : going)
      fs::rename(path, target / path.filename());
    return target;
  });
}

std::optional<fs::path> RunFolder::move_later_aside(std::int64_t step) const {
  return moving(path_, [&]() -> std::optional<fs::path> {
    std::vector<fs::path> going;
    for (const fs::path& folder : checkpoint::list(checkpoints())) {
      if (*checkpoint::step_of(folder) > step) going.push_back(folder);
    }
    if (going.empty()) return std::nullopt;
    const fs::path target = make_aside();
    if (fs::exists(path_ / "metrics.jsonl"))
      fs::copy_file(path_ / "metrics.jsonl", target / "metrics.jsonl");
    fs::create_directory(target / "checkpoints");
    for (const fs::path& folder : going)
      fs::rename(folder, target / "checkpoints" / folder.filename());
    if (fs::exists(checkpoints() / "latest"))
      files::write_atomic(checkpoints() / "latest", checkpoint::step_name(step) + "\n");
    return target;
  });
}

fs::path RunFolder::log_file(int rank) const {
  return path_ / "logs" / fmt::format("rank_{:05d}.log", rank);
}

}  // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/run_folder.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/engine/metrics.h"

namespace tessera::engine {
namespace fs = std::filesystem;

RunFolder::RunFolder(const fs::path& path, bool owns) : path_(path) {
  if (!owns) return;
  std::error_code failure;
  fs::create_directories(path_, failure);
  const bool folder = fs::is_directory(path_);
  TESSERA_REQUIRE(folder && ::access(path_.c_str(), W_OK) == 0,
                  Io,
                  fmt::format("cannot write to the run folder {}: {}",
                              path_.string(),
                              failure  ? failure.message()
                              : folder ? std::strerror(errno)
                                       : "not a folder"),
                  "choose another run.dir");
  std::string owner;
  lock_ = files::Lock::try_acquire(path_ / "lock", &owner);
  TESSERA_REQUIRE(lock_ != nullptr,
                  Io,
                  fmt::format("the run folder {} is in use by {}", path_.string(), owner),
                  "wait for that run, stop it, or choose another run.dir");
}

std::optional<json::Value> RunFolder::config() const {
  if (!fs::exists(path_ / "config.json")) return std::nullopt;
  return json::parse_strict(files::read(path_ / "config.json"), (path_ / "config.json").string());
}

void RunFolder::prepare(const json::Value& resolved) const {
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
  const LossHistory history = read_losses(path_ / "metrics.jsonl");
  return history.train.empty() ? 0 : history.train.back().step;
}

std::optional<fs::path> RunFolder::move_aside() const {
  bool any = false;
  for (const auto& entry : fs::directory_iterator(path_))
    any |= entry.path().filename() != "lock";
  if (!any) return std::nullopt;
  fs::path target;
  for (int n = 1; target.empty() || fs::exists(target); ++n)
    target = fmt::format("{}.old-{}", path_.string(), n);
  fs::create_directories(target);
  for (const auto& entry : fs::directory_iterator(path_)) {
    if (entry.path().filename() != "lock")
      fs::rename(entry.path(), target / entry.path().filename());
  }
  return target;
}

fs::path RunFolder::log_file(int rank) const {
  return path_ / "logs" / fmt::format("rank_{:05d}.log", rank);
}

}  // namespace tessera::engine

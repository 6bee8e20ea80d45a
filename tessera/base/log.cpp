// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/log.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"

namespace tessera::log {
namespace {

/// Appends lines to a file of a run folder. spdlog's own sink would follow a link.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(const std::filesystem::path& path) : path_(path) {
    std::error_code ignored;  // opening reports what is wrong
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
    fd_ = files::open_own(path, O_WRONLY | O_APPEND | O_CREAT);
  }
  ~FileSink() override { ::close(fd_); }
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    for (std::size_t at = 0; at < line.size();) {
      const ssize_t written = ::write(fd_, line.data() + at, line.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) throw std::runtime_error(path_.string() + ": " + std::strerror(errno));
      at += static_cast<std::size_t>(written);
    }
  }
  void flush_() override {}

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

struct State {
  std::mutex mutex;
  Sink sink;
  Level level = Level::Info;
  std::shared_ptr<spdlog::logger> file;
  std::set<std::string, std::less<>> warned_once;
};

// Never destroyed: destructors of static objects may still log.
State& state() {
  static State* const instance = new State;
  return *instance;
}

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::Debug:
      return spdlog::level::debug;
    case Level::Info:
      return spdlog::level::info;
    case Level::Warning:
      return spdlog::level::warn;
    case Level::Error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

void write_locked(State& s, Level level, std::string_view text) {
  if (level < s.level) return;
  const std::string message = text::printable(text);
  if (s.file)
    s.file->log(spdlog_level(level), spdlog::string_view_t(message.data(), message.size()));
  if (s.sink) s.sink(level, message);
}

void write(Level level, std::string_view message) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  write_locked(s, level, message);
}

}  // namespace

void set_sink(Sink sink) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.sink = std::move(sink);
}

void set_level(Level level) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.level = level;
}

void open_file(const std::string& path) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.file.reset();
  if (path.empty()) return;
  try {
    s.file = std::make_shared<spdlog::logger>("file", std::make_shared<FileSink>(path));
  } catch (const Error& reason) {
    throw Error(Error::Kind::Io,
                std::string("the log file cannot be opened: ") + reason.what(),
                reason.fix());
  }
  s.file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  s.file->set_level(spdlog::level::trace);
  s.file->flush_on(spdlog::level::trace);
  // Called under the lock, from write_locked(). Reported once, because every later message would
  // fail in the same way.
  s.file->set_error_handler([&s, reported = false](const std::string& reason) mutable {
    if (std::exchange(reported, true) || !s.sink || Level::Warning < s.level) return;
    s.sink(Level::Warning, "the log file cannot be written any more: " + reason);
  });
}

void debug(std::string_view message) {
  write(Level::Debug, message);
}
void info(std::string_view message) {
  write(Level::Info, message);
}
void warn(std::string_view message) {
  write(Level::Warning, message);
}
void error(std::string_view message) {
  write(Level::Error, message);
}

void warn_once(std::string_view message) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.warned_once.emplace(message).second) write_locked(s, Level::Warning, message);
}

}  // namespace tessera::log

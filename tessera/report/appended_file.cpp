// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/appended_file.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::report {

AppendedFile::AppendedFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code ignored;  // open() reports what is wrong
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), ignored);
  fd_ = files::open_own(path_, O_WRONLY | O_APPEND | O_CREAT, 0644);
}

AppendedFile::~AppendedFile() {
  try {
    flush();
  } catch (const Error&) {
    // a caller that needs the error has called flush()
  }
  if (fd_ >= 0) ::close(fd_);
}

void AppendedFile::append(std::string_view bytes) {
  flush();
  write(bytes);
}

void AppendedFile::append_soon(std::string_view bytes) {
  constexpr std::size_t kMostKept = std::size_t{1} << 16;
  constexpr double kLongest_s = 1.0;
  kept_ += bytes;
  if (kept_.size() >= kMostKept || now_s() - written_ >= kLongest_s) flush();
}

void AppendedFile::flush() {
  const std::string kept = std::exchange(kept_, {});
  write(kept);
}

void AppendedFile::write(std::string_view bytes) {
  if (!bytes.empty()) written_ = now_s();
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    TESSERA_REQUIRE(written > 0,
                    Io,
                    fmt::format("cannot write {}: {}",
                                path_.string(),
                                written < 0 ? std::strerror(errno) : "nothing was written"),
                    "free disk space, or switch the monitor off");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace tessera::report

// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/bounded_output.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/clock.h"

namespace tessera {
namespace {

constexpr double kLookS = 1.0;  // between two calls of `waiting`

std::int64_t lines_in(std::string_view text) {
  return std::max<std::int64_t>(1, std::count(text.begin(), text.end(), '\n'));
}

bool has_no_room(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

}  // namespace

BoundedOutput::~BoundedOutput() {
  if (own_ >= 0) ::close(own_);
}

// A child may have put another file in the place of the descriptor.
void BoundedOutput::look() {
  struct stat now {};
  if (::fstat(fd_, &now) != 0) {
    kind_ = Kind::Plain;
    return;
  }
  if (kind_ != Kind::Unknown && now.st_dev == device_ && now.st_ino == inode_) return;
  if (own_ >= 0) ::close(own_);
  own_ = -1;
  device_ = now.st_dev;
  inode_ = now.st_ino;
  kind_ = Kind::Plain;
  stuck_ = torn_ = false;
  dropped_ = 0;
  if (S_ISSOCK(now.st_mode)) kind_ = Kind::Socket;
  if (!S_ISFIFO(now.st_mode)) return;
  own_ = ::open(fmt::format("/proc/self/fd/{}", fd_).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (own_ >= 0) kind_ = Kind::Pipe;
}

bool BoundedOutput::is_bounded() {
  look();
  return kind_ != Kind::Plain;
}

ssize_t BoundedOutput::write_now(std::string_view text) const {
  if (kind_ == Kind::Pipe) return ::write(own_, text.data(), text.size());
  if (kind_ == Kind::Socket) return ::send(fd_, text.data(), text.size(), MSG_DONTWAIT);
  return ::write(fd_, text.data(), text.size());
}

bool BoundedOutput::write(std::string_view text, const std::function<void(double)>& waiting) {
  look();
  std::string whole;
  if (torn_) whole += '\n';
  if (dropped_ > 0)
    whole += fmt::format("({} line{} not printed: nobody read the output)\n",
                         dropped_,
                         dropped_ == 1 ? " was" : "s were");
  whole += text;
  const double begin = now_s();
  std::string_view rest = whole;
  while (!rest.empty()) {
    const ssize_t written = write_now(rest);
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
      continue;
    }
    if (errno == EINTR) continue;
    if (!has_no_room(errno)) return true;  // there is no reader, or its disk is full
    const double left = stuck_ ? 0.0 : begin + patience_s_ - now_s();
    if (left <= 0.0) break;
    pollfd room{kind_ == Kind::Pipe ? own_ : fd_, POLLOUT, 0};
    ::poll(&room, 1, static_cast<int>(std::min(kLookS, left) * 1e3) + 1);
    if (waiting && (room.revents & POLLOUT) == 0) waiting(now_s() - begin);
  }
  stuck_ = !rest.empty();
  if (rest.size() == whole.size()) {
    dropped_ += lines_in(text);
    return false;
  }
  torn_ = stuck_ && whole[whole.size() - rest.size() - 1] != '\n';
  dropped_ = stuck_ ? lines_in(rest) : 0;
  return !stuck_;
}

}  // namespace tessera

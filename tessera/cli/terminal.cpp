// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/terminal.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {
namespace {

log::Level shown_level = log::Level::Warning;  // set before anything else runs

bool coloured() {
  const char* plain = std::getenv("NO_COLOR");
  return (plain == nullptr || *plain == '\0') && shows_live_lines(STDERR_FILENO);
}

/// True if this process is a rank of a launcher, even if the launcher's variables contradict each
/// other.
bool is_launched() {
  try {
    return hosts::detect_launcher().has_value();
  } catch (const Error&) {
    return true;
  }
}

void to_stderr(const char* colour, const char* label, std::string_view text) {
  const bool colours = coloured();
  // One write per message, so that lines of several processes do not mix.
  std::string out = std::string(colours ? colour : "") + label + (colours ? "\033[0m" : "");
  out += text;
  out += '\n';
  std::fwrite(out.data(), 1, out.size(), stderr);
}

std::size_t columns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

// At most `width` characters of the text; a character is never split.
std::string_view clip(std::string_view text, std::size_t width) {
  std::size_t characters = 0, end = 0;
  for (; end < text.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (begins && ++characters > width) break;
  }
  return text.substr(0, end);
}

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

bool shows_live_lines(int descriptor) {
  return isatty(descriptor) != 0 && !is_launched();
}

Terminal::Terminal() : terminal_(shows_live_lines(STDOUT_FILENO)) {}
Terminal::~Terminal() {
  erase_live();
}

void Terminal::flush() const {
  constexpr int kSecond = 1000, kTold = 3;
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  for (int waited = 1; on_wait_ && ::poll(&out, 1, kSecond) == 0; ++waited) {
    on_wait_();
    if (waited == kTold)
      log::warn_once(
          "the training waits for the reader of its standard output, whose pipe is full");
  }
  std::fflush(stdout);
}

void Terminal::erase_live() {
  if (!live_) return;
  put("\r\033[K");
  flush();
  live_ = false;
}

void Terminal::line(std::string_view text) {
  data(text::printable(text));
}

void Terminal::data(std::string_view text) {
  erase_live();
  put(text);
  put("\n");
  flush();
}

void Terminal::live(std::string_view text) {
  if (!terminal_) return;
  erase_live();
  if (text.empty()) return;
  // A wrapped line could not be erased.
  put(clip(text::printable(text), columns() - 1));
  flush();
  live_ = true;
}

void Terminal::stream(std::string_view text) {
  erase_live();
  put(text);
  flush();
}

bool reader_has_gone() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

void require_output_written() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int why = errno;
  if ((flushed && std::ferror(stdout) == 0) || why == EPIPE || reader_has_gone()) return;
  throw Error(Error::Kind::Io,
              fmt::format("cannot write standard output{}{}",
                          why == 0 ? "" : ": ",
                          why == 0 ? "" : std::strerror(why)),
              "free disk space, or write elsewhere");
}

void print_error(const std::string& text) {
  to_stderr("\033[31m", "error: ", text::printable(text));
}

void print_note(const std::string& text) {
  to_stderr("\033[2m", "", text::printable(text));
}

void show_log(log::Level level) {
  shown_level = level;
  log::set_level(std::min(level, log::Level::Info));
}

void print_log(log::Level level, std::string_view message) {
  if (level < shown_level) return;
  switch (level) {
    case log::Level::Debug:
      return to_stderr("\033[2m", "debug: ", message);
    case log::Level::Info:
      return to_stderr("\033[2m", "", message);
    case log::Level::Warning:
      return to_stderr("\033[33m", "warning: ", message);
    case log::Level::Error:
      return to_stderr("\033[31m", "error: ", message);
  }
}

}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/terminal.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tessera/base/bounded_output.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {
namespace {

constexpr double kPatienceS = 10.0;  // for a reader of a training's output
constexpr double kToldS = 3.0;

log::Level shown_level = log::Level::Warning;  // set before anything else runs
bool goes_on = false;                          // the same

BoundedOutput& standard_output() {
  static BoundedOutput output(STDOUT_FILENO, kPatienceS);
  return output;
}

BoundedOutput& standard_error() {
  static BoundedOutput output(STDERR_FILENO, kPatienceS);
  return output;
}

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
  if (goes_on && standard_error().is_bounded()) {
    standard_error().write(out);
  } else {
    std::fwrite(out.data(), 1, out.size(), stderr);
  }
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

}  // namespace

bool shows_live_lines(int descriptor) {
  return isatty(descriptor) != 0 && !is_launched();
}

void go_on_without_a_reader(bool goes) {
  goes_on = goes;
}

Terminal::Terminal() : terminal_(shows_live_lines(STDOUT_FILENO)) {}
Terminal::~Terminal() {
  erase_live();
}

void Terminal::flush() {
  const std::string text = std::exchange(unwritten_, {});
  if (goes_on && standard_output().is_bounded()) {
    std::fflush(stdout);
    const bool written = standard_output().write(text, [&](double seconds) {
      if (on_wait_) on_wait_();
      if (seconds >= kToldS)
        log::warn_once(
            "the training waits for the reader of its standard output, whose pipe is full");
    });
    if (!written)
      log::warn_once(
          "nobody reads the standard output of this training, which goes on without printing; "
          "metrics.jsonl in the run folder has every step");
    return;
  }
  // A terminal that its user has stopped.
  constexpr int kSecond = 1000;
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  while (on_wait_ && ::poll(&out, 1, kSecond) == 0)
    on_wait_();
  std::fwrite(text.data(), 1, text.size(), stdout);
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

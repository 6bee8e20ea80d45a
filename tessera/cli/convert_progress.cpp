// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/convert_progress.h"

#include <chrono>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::cli {
namespace {

constexpr double kLiveSeconds = 0.1, kLineSeconds = 5;
constexpr std::uint64_t kBarCharacters = 24;

}  // namespace

double ConvertProgress::seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ConvertProgress::ConvertProgress(std::uint64_t total_bytes, engine::Console& console, Clock now)
    : total_(total_bytes),
      console_(console),
      now_(std::move(now)),
      begin_(now_()),
      next_(begin_ + (console.is_terminal() ? kLiveSeconds : kLineSeconds)) {}

void ConvertProgress::add(std::uint64_t bytes) {
  done_ += bytes;
  const double now = now_();
  // If nothing was shown, the end is not shown either.
  const bool last = done_ >= total_ && (shown_ || console_.is_terminal());
  if (now < next_ && !last) return;
  next_ = now + (console_.is_terminal() ? kLiveSeconds : kLineSeconds);
  shown_ = true;
  show(now);
}

void ConvertProgress::show(double now) {
  const double share = total_ == 0 ? 1 : static_cast<double>(done_) / static_cast<double>(total_);
  std::string text = fmt::format(
      "{:3} %, {} of {}", static_cast<int>(share * 100), text::bytes(done_), text::bytes(total_));
  if (done_ < total_ && done_ > 0)
    text += fmt::format(", {} left", text::duration((now - begin_) * (1 - share) / share));
  if (!console_.is_terminal()) return console_.line("converting: " + text);
  const auto full = static_cast<std::size_t>(share * static_cast<double>(kBarCharacters));
  console_.live(fmt::format("converting [{}{}] {}",
                            std::string(full, '#'),
                            std::string(kBarCharacters - full, '.'),
                            text));
}

}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/link_speed.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::comm {
namespace {

constexpr std::size_t kLeastMessageBytes = std::size_t{64} << 10;
constexpr double kLinkPeriodS = 4.0;
constexpr double kSlowLinkRatio = 4.0;

std::string speed_text(double bytes_per_s) {
  return text::bytes(static_cast<std::uint64_t>(bytes_per_s)) + "/s";
}

}  // namespace

std::optional<std::string> LinkSpeed::add(std::size_t bytes, double seconds, double now) {
  if (bytes < kLeastMessageBytes || seconds <= 0.0) return std::nullopt;
  if (began_ < 0.0) began_ = now - seconds;
  fastest_ = std::max(fastest_, static_cast<double>(bytes) / seconds);
  if (now < began_ + kLinkPeriodS) return std::nullopt;
  const double in_period = fastest_;
  began_ = now;
  fastest_ = 0.0;
  const bool slow = in_period * kSlowLinkRatio < before_;
  before_ = std::max(before_, in_period);
  if (!slow) told_ = false;
  if (!slow || told_) return std::nullopt;
  told_ = true;
  return fmt::format("{}, and before {}", speed_text(in_period), speed_text(before_));
}

}  // namespace tessera::comm

// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/run_board.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::report {
namespace {

std::optional<double> number(const json::Value& value, const char* key) {
  const json::Value* const found = value.find(key);
  if (found == nullptr || !found->is_number()) return std::nullopt;
  return found->as_double();
}

std::string word(const json::Value& value, const char* key) {
  const json::Value* const found = value.find(key);
  return found != nullptr && found->is_string() ? found->as_string() : std::string();
}

/// Returns the line without control characters, which a log of another program may contain,
/// truncated at a character.
std::string fitting(const std::string& line, std::size_t width) {
  std::string out;
  std::size_t shown = 0;
  for (const char c : line) {
    const auto byte = static_cast<unsigned char>(c);
    const bool begins = (byte & 0xc0) != 0x80;
    if (begins && ++shown > width) break;
    out += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  return out;
}

std::string progress_of(const json::Value& run) {
  const auto step = number(run, "step"), most = number(run, "max_steps");
  if (!step) return "no step yet";
  std::string out = "step " + text::with_commas(static_cast<std::int64_t>(*step));
  if (most && *most > 0) {
    out += fmt::format(" of {} ({:.0f}%)",
                       text::with_commas(static_cast<std::int64_t>(*most)),
                       100 * std::min(1.0, *step / *most));
  }
  if (const auto eta = number(run, "eta_s")) out += ", ETA " + text::duration(*eta);
  return out;
}

std::string numbers_of(const json::Value& run) {
  std::vector<std::string> parts;
  const auto add = [&](const char* key, auto words) {
    if (const auto value = number(run, key)) parts.push_back(words(*value));
  };
  add("loss", [](double v) { return fmt::format("loss {:.4f}", v); });
  add("eval_loss", [](double v) { return fmt::format("eval {:.4f}", v); });
  add("lr", [](double v) { return fmt::format("lr {:.2e}", v); });
  add("grad_norm", [](double v) { return fmt::format("gnorm {:.3f}", v); });
  add("tokens_per_s", [](double v) { return text::count(v) + " tok/s"; });
  add("padding_share", [](double v) { return fmt::format("padding {:.0f}%", 100 * v); });
  add("matrix_share", [](double v) { return fmt::format("MFU {:.0f}%", 100 * v); });
  add("mem_peak_bytes", [](double v) {
    return "mem " + text::bytes(static_cast<std::uint64_t>(std::clamp(v, 0.0, 1e18)));
  });
  return text::join(parts, " | ");
}

/// "4 ranks | mem 1.2 GiB to 1.4 GiB | stages wait 3%, 12%"; empty if the run has no table of
/// ranks, or one rank.
std::string ranks_of(const json::Value& table) {
  constexpr std::size_t kMostStages = 16;
  const json::Value* const ranks = table.is_object() ? table.find("ranks") : nullptr;
  if (ranks == nullptr || ranks->items().size() < 2) return "";
  const double left_out = number(table, "more_ranks").value_or(0);
  std::string out =
      fmt::format("{:.0f} ranks", static_cast<double>(ranks->items().size()) + left_out);
  double low = 0, high = 0;
  for (const json::Value& rank : ranks->items()) {
    const double peak =
        rank.is_object() ? std::clamp(number(rank, "peak_bytes").value_or(0), 0.0, 1e18) : 0.0;
    low = &rank == &ranks->items().front() ? peak : std::min(low, peak);
    high = std::max(high, peak);
  }
  out += fmt::format(" | mem {} to {}",
                     text::bytes(static_cast<std::uint64_t>(low)),
                     text::bytes(static_cast<std::uint64_t>(high)));
  const json::Value* const stages = table.find("stages");
  if (stages == nullptr || !stages->is_array()) return out;
  std::vector<std::string> waits;
  for (const json::Value& stage : stages->items()) {
    if (waits.size() == kMostStages) break;
    if (stage.is_object())
      waits.push_back(fmt::format("{:.0f}%", 100 * number(stage, "waits").value_or(0)));
  }
  return out + " | stages wait " + text::join(waits, ", ");
}

}  // namespace

std::string sparkline(std::span<const double> values) {
  static constexpr std::array<std::string_view, 8> kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty()) return "";
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double range = *high - *low;
  std::string out;
  for (const double value : values) {
    const double place = range > 0 ? (value - *low) / range * 7.999 : 0.0;
    out += kBars[static_cast<std::size_t>(std::clamp(place, 0.0, 7.0))];
  }
  return out;
}

std::vector<std::string> run_board(std::span<const RunView> runs, std::size_t width) {
  constexpr std::size_t kIndent = 2;
  std::vector<std::string> out;
  for (const RunView& run : runs) {
    const json::Value summary = run.summary();
    const std::string state = word(summary, "state"), message = word(summary, "message");
    std::vector<std::string> lines = {
        fmt::format(
            "{}  {}  {}", run.name(), state.empty() ? "unknown" : state, progress_of(summary)),
        "  " + numbers_of(summary),
        "  " + sparkline(
                   run.losses(std::min<std::size_t>(width > kIndent ? width - kIndent : 1, 120)))};
    if (const std::string ranks = ranks_of(run.ranks()); !ranks.empty())
      lines.push_back("  " + ranks);
    if (!message.empty()) lines.push_back("  " + message);
    if (const auto events = run.events(); !events.empty()) lines.push_back("  " + events.back());
    if (!out.empty()) out.emplace_back();
    for (const std::string& line : lines)
      out.push_back(fitting(line, width));
  }
  return out;
}

}  // namespace tessera::report

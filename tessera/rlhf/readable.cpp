// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/readable.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"

namespace tessera::rlhf {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20U, kLongestText = 2000;
constexpr std::string_view kHeader = "== after ";

/// Lines of a text behind a mark, so that no line of a completion looks like one of the file's own.
std::string marked(std::string_view text, std::string_view mark) {
  std::string_view shown = text.substr(0, kLongestText);
  if (shown.size() < text.size()) shown.remove_suffix(text::incomplete_utf8_tail(shown));
  std::string out;
  for (const std::string& line : text::split(shown, '\n')) {
    out += fmt::format("  {} ", mark);
    for (std::size_t i = 0; i < line.size(); ++i) {  // a terminal obeys control characters
      const auto c = static_cast<unsigned char>(line[i]),
                 next = static_cast<unsigned char>(i + 1 < line.size() ? line[i + 1] : ' ');
      const bool c1 = c == 0xC2U && next >= 0x80U && next < 0xA0U;
      out += (c < 0x20U && c != '\t') || c == 0x7FU || c1 ? '?' : line[i];
      i += c1 ? 1 : 0;
    }
    out += '\n';
  }
  if (shown.size() < text.size())
    out += fmt::format("  ... and {} bytes\n", text.size() - shown.size());
  return out;
}

std::string described(const ReadableSample& one, std::span<const std::string> names) {
  std::vector<std::string> parts;
  for (std::size_t f = 0; names.size() > 1 && f < names.size(); ++f) {
    parts.push_back(std::isnan(one.parts.at(f)) ? names[f] + " none"
                                                : fmt::format("{} {:.4g}", names[f], one.parts[f]));
  }
  return fmt::format("prompt {}: reward {:.4g}{}, {} tokens{}\n{}{}",
                     one.prompt,
                     one.reward,
                     parts.empty() ? "" : fmt::format(" ({})", text::join(parts, ", ")),
                     one.tokens,
                     one.ended ? "" : ", no end",
                     marked(one.prompt_text, ">"),
                     marked(one.text, "|"));
}

}  // namespace

std::vector<ReadableSample> samples_of(std::span<const Completion> completions,
                                       const std::vector<std::string>& texts,
                                       const Scored& scored,
                                       const tasks::Prompts& prompts,
                                       std::int64_t group_size) {
  std::vector<ReadableSample> out;
  for (std::int64_t b = 0; b < std::ssize(completions) && std::ssize(out) < kReadableSamples;
       b += group_size) {
    const auto number = static_cast<std::size_t>(b);
    const Completion& one = completions[number];
    const at::Tensor parts_F = scored.rewards_BF[b].contiguous();
    const auto* const parts = parts_F.const_data_ptr<double>();
    out.push_back({.prompt = one.prompt,
                   .prompt_text = prompts.prompt(one.prompt).text,
                   .text = texts.at(number),
                   .tokens = std::ssize(one.ids),
                   .ended = one.ended,
                   .reward = (parts_F.nan_to_num() * scored.weights_F).sum().item<double>(),
                   .parts = {parts, parts + parts_F.numel()}});
  }
  return out;
}

ReadableRollouts::ReadableRollouts(std::filesystem::path path,
                                   std::int64_t every,
                                   std::int64_t last_version)
    : path_(std::move(path)), every_(every) {
  if (!std::filesystem::exists(path_)) return;
  const std::string text = files::read(path_);
  bool keeps = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.starts_with(kHeader)) {
      std::int64_t version = 0;
      const char* const digits = line.data() + kHeader.size();
      keeps = std::from_chars(digits, line.data() + line.size(), version).ec == std::errc() &&
              version <= last_version;
      if (keeps) blocks_.push_back({version, ""});
    }
    if (keeps) blocks_.back().text += line;
    at = end;
  }
}

bool ReadableRollouts::wants(std::int64_t version, std::int64_t updates) const {
  return every_ > 0 && (version == 0 || (version + updates) / every_ > version / every_);
}

void ReadableRollouts::add(std::int64_t version,
                           std::span<const ReadableSample> samples,
                           std::span<const std::string> names) {
  std::string text = fmt::format("{}{} updates\n", kHeader, version);
  for (const ReadableSample& one : samples)
    text += "\n" + described(one, names);
  while (!blocks_.empty() && blocks_.back().version >= version)
    blocks_.pop_back();
  blocks_.push_back({version, text + "\n"});
  std::size_t bytes = 0;
  for (const Block& block : blocks_)
    bytes += block.text.size();
  for (; bytes > kMostBytes && blocks_.size() > 1; blocks_.pop_front())
    bytes -= blocks_.front().text.size();
  std::string all;
  for (const Block& block : blocks_)
    all += block.text;
  files::write_atomic(path_, all);
}

}  // namespace tessera::rlhf

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/corrupted_spans.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kUnused = -100;
constexpr std::uint64_t kSpanSite = 0x7370616E;  // separates these random numbers from others

std::int64_t to_even(double number) {
  return static_cast<std::int64_t>(std::nearbyint(number));
}

/// Divides `items` into `segments` parts of at least one and returns their lengths. A random number
/// is drawn for each of the items - 1 possible cuts, and the smallest ones are used.
std::vector<std::int64_t> random_lengths(std::int64_t items,
                                         std::int64_t segments,
                                         const Philox& random,
                                         std::int64_t sample,
                                         std::uint64_t site) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> places;
  for (std::int64_t place = 1; place < items; ++place) {
    const Philox::Block words =
        random(2 * static_cast<std::uint64_t>(place) + site, static_cast<std::uint64_t>(sample));
    places.emplace_back((static_cast<std::uint64_t>(words[0]) << 32) | words[1], place);
  }
  const auto cuts = static_cast<std::size_t>(segments - 1);
  std::ranges::nth_element(places, places.begin() + static_cast<std::ptrdiff_t>(cuts));
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i < cuts; ++i)
    ends.push_back(places[i].second);
  std::ranges::sort(ends);
  ends.push_back(items);
  std::adjacent_difference(ends.begin(), ends.end(), ends.begin());
  return ends;
}

}  // namespace

std::string SpanNoise::text() const {
  return fmt::format("{} {} [{}] {} {} {}",
                     text::number(density),
                     text::number(mean_length),
                     fmt::join(sentinels, ","),
                     end,
                     seed,
                     dynamic);
}

SpanCounts count_spans(std::int64_t tokens, double density, double mean_length) {
  SpanCounts out;
  if (tokens > 1) {
    out.noise =
        std::clamp<std::int64_t>(to_even(static_cast<double>(tokens) * density), 1, tokens - 1);
    out.spans = std::clamp<std::int64_t>(to_even(static_cast<double>(out.noise) / mean_length),
                                         1,
                                         std::min(out.noise, tokens - out.noise));
  }
  out.input = tokens - out.noise + out.spans + 1;
  out.target = out.noise + out.spans + 1;
  return out;
}

std::int64_t text_length_for(std::int64_t input, double density, double mean_length) {
  const auto fits = [&](std::int64_t tokens) {
    return count_spans(tokens, density, mean_length).input <= input;
  };
  // An input is at most as much shorter than its sequence as tokens are removed.
  auto tokens =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(input + 1) / (1.0 - density)));
  while (tokens > 0 && !fits(tokens))
    --tokens;
  if (tokens > 2 && density == 0.5) {
    const SpanCounts counts = count_spans(tokens, density, mean_length);
    if (counts.target > counts.input) --tokens;
  }
  return tokens;
}

std::vector<bool> choose_spans(std::int64_t tokens, const SpanNoise& noise, std::int64_t sample) {
  std::vector<bool> out(static_cast<std::size_t>(tokens), false);
  const SpanCounts counts = count_spans(tokens, noise.density, noise.mean_length);
  if (counts.spans == 0) return out;
  const Philox random{mix64(noise.seed, kSpanSite)};
  const auto hidden = random_lengths(counts.noise, counts.spans, random, sample, 0);
  const auto kept = random_lengths(tokens - counts.noise, counts.spans, random, sample, 1);
  auto at = out.begin();
  for (std::size_t s = 0; s < hidden.size(); ++s) {
    at += kept[s];
    std::fill_n(at, hidden[s], true);
    at += hidden[s];
  }
  return out;
}

CorruptedSpans::CorruptedSpans(std::unique_ptr<data::TokenDataset> tokens,
                               std::int64_t input_length,
                               SpanNoise noise)
    : tokens_(std::move(tokens)), input_length_(input_length), noise_(std::move(noise)) {
  TESSERA_ASSERT(tokens_ != nullptr);
  counts_ = count_spans(tokens_->length(), noise_.density, noise_.mean_length);
  TESSERA_ASSERT(counts_.input <= input_length_ && counts_.spans <= std::ssize(noise_.sentinels));
}

std::vector<data::TensorSpec> CorruptedSpans::tensors() const {
  return {
      {.name = "input_ids", .dtype = DType::I64, .shape = {input_length_}},
      {.name = "attention_mask", .dtype = DType::I64, .shape = {input_length_}, .optional = true},
      {.name = "labels", .dtype = DType::I64, .shape = {counts_.target}}};
}

void CorruptedSpans::read(std::int64_t index, data::SampleWriter& out) const {
  const auto length = static_cast<std::size_t>(tokens_->length());
  std::vector<std::int64_t> ids(length), next(length), read(length);
  tokens_->get(index, ids.data(), next.data(), read.data());
  const auto used = std::ranges::count_if(read, [](std::int64_t one) { return one != 0; });
  const std::vector<bool> hidden =
      choose_spans(used, noise_, noise_.dynamic ? out.number() : index);

  const std::span<std::int64_t> input = out.tensor<std::int64_t>("input_ids"),
                                mask = out.tensor<std::int64_t>("attention_mask"),
                                labels = out.tensor<std::int64_t>("labels");
  std::size_t i = 0, l = 0, span = 0;
  for (std::size_t t = 0; t < hidden.size(); ++t) {
    if (hidden[t] && !hidden[t - 1]) {  // a sequence begins with a kept span
      input[i++] = labels[l++] = noise_.sentinels[span++];
    }
    if (hidden[t]) {
      labels[l++] = ids[t];
    } else {
      input[i++] = ids[t];
    }
  }
  input[i++] = labels[l++] = noise_.end;
  std::fill(input.begin() + static_cast<std::ptrdiff_t>(i), input.end(), noise_.end);
  std::fill(labels.begin() + static_cast<std::ptrdiff_t>(l), labels.end(), kUnused);
  std::fill_n(mask.begin(), i, 1);
  std::fill(mask.begin() + static_cast<std::ptrdiff_t>(i), mask.end(), 0);
  if (i < mask.size()) out.need("attention_mask");
}

}  // namespace tessera::tasks

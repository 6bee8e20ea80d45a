// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/word_spans.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kNothing = -100;
// These separate the random numbers of texts and of spans from others.
constexpr std::uint64_t kTextSite = 0x74657874, kWordSite = 0x776F7264;

/// The words of a text; a text that begins within a word has that part as its first one.
std::vector<WordSpan> words_of(const std::vector<std::int32_t>& ids,
                               const std::vector<bool>& begins_word) {
  std::vector<WordSpan> out;
  for (std::int64_t t = 0; t < std::ssize(ids); ++t) {
    const auto id = static_cast<std::size_t>(ids[static_cast<std::size_t>(t)]);
    const bool begins = id >= begins_word.size() || begins_word[id];
    if (begins || out.empty()) {
      out.emplace_back(t, t + 1);
    } else {
      out.back().second = t + 1;
    }
  }
  return out;
}

/// A number of at least 1 that is geometric with probability `stop`, at most `most`.
std::int64_t geometric(double share, double stop, std::int64_t most) {
  if (stop >= 1.0) return 1;
  const double number = std::ceil(std::log(share) / std::log1p(-stop));
  return number >= static_cast<double>(most) ? most
                                             : std::max<std::int64_t>(1, std::llround(number));
}

}  // namespace

std::string WordSpansOptions::text() const {
  return fmt::format("{} {} {} {} {} {} [{}] {} {} {} {}",
                     input_length,
                     target_length,
                     text::number(density),
                     most_words,
                     text::number(stop),
                     text::number(short_share),
                     fmt::join(sentinels, ","),
                     end,
                     pad,
                     seed,
                     dynamic);
}

std::vector<WordSpan> choose_word_spans(const std::vector<std::int32_t>& ids,
                                        const WordSpansOptions& options,
                                        std::uint64_t sample) {
  const std::vector<WordSpan> words = words_of(ids, options.begins_word);
  const auto full = static_cast<double>(options.input_length - 2);
  const double most =
      std::min(options.density * full,
               std::max(1.0, std::nearbyint(static_cast<double>(ids.size()) * options.density)));
  Draws draws(mix64(options.seed, kWordSite), sample);
  std::vector<std::size_t> order(words.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(i)))]);
  std::vector<bool> removed(words.size(), false);
  std::vector<WordSpan> out;
  std::int64_t count = 0;
  for (const std::size_t first : order) {
    if (static_cast<double>(count) >= most || out.size() == options.sentinels.size()) break;
    const std::int64_t drawn = geometric(draws.share(), options.stop, options.most_words);
    std::size_t last =
        std::min(words.size(), first + static_cast<std::size_t>(drawn));  // past the span
    const auto size = [&] { return words[last - 1].second - words[first].first; };
    while (last > first && static_cast<double>(count + size()) > most)
      --last;
    if (last == first || std::find(removed.begin() + static_cast<std::ptrdiff_t>(first),
                                   removed.begin() + static_cast<std::ptrdiff_t>(last),
                                   true) != removed.begin() + static_cast<std::ptrdiff_t>(last))
      continue;
    // The target has a sentinel for each span, and its end.
    if (count + size() + std::ssize(out) + 2 > options.target_length) continue;
    std::fill(removed.begin() + static_cast<std::ptrdiff_t>(first),
              removed.begin() + static_cast<std::ptrdiff_t>(last),
              true);
    count += size();
    out.emplace_back(words[first].first, words[last - 1].second);
  }
  std::ranges::sort(out);
  return out;
}

WordSpans::WordSpans(WordSpansOptions options)
    : options_(std::move(options)), sentences_(std::make_shared<Sentences>()) {
  TESSERA_ASSERT(options_.input_length > 2 && options_.target_length > 2 &&
                 !options_.sentinels.empty());
}

void WordSpans::read_files(const std::vector<std::string>& names,
                           const text::Tokenizer& tokenizer,
                           const data::TokenizeOptions& how) {
  stats_ = read_sentences(names, tokenizer, how, *sentences_, documents_);
}

std::unique_ptr<RecordDataset> WordSpans::split_off(std::int64_t count) {
  TESSERA_ASSERT(!arranged_);
  auto tail = std::make_unique<WordSpans>(options_);
  tail->options_.dynamic = false;
  tail->sentences_ = sentences_;
  tail->documents_ = take_tail(documents_, count);
  return tail;
}

void WordSpans::reorder(const std::vector<std::int64_t>& order) {
  documents_ = reordered(documents_, order);
}

void WordSpans::arrange() {
  arranged_ = true;
  for (std::size_t d = 0; d < documents_.size(); ++d)
    divide(d);
}

void WordSpans::divide(std::size_t document) {
  const auto [begin, end] = documents_[document];
  const std::int64_t room = options_.input_length - 2;
  Draws draws(mix64(options_.seed, kTextSite), document);
  const auto draw_length = [&] {
    const bool shorter = draws.share() <= options_.short_share && room > 2;
    return shorter ? 2 + draws.below(room - 2) : room;
  };
  std::int64_t first = begin, wanted = draw_length();
  for (std::int64_t last = begin + 1; last <= end; ++last) {
    // The last sentence of a document is not left alone.
    const bool full = sentences_->tokens_of(first, last) >= wanted && end - last > 1;
    if (!full && last < end) continue;
    const std::int64_t from = sentences_->begins[static_cast<std::size_t>(first)],
                       size = std::min(sentences_->tokens_of(first, last), wanted);
    if (size < sentences_->tokens_of(first, last)) ++cut_;
    texts_.emplace_back(from, from + size);
    first = last;
    wanted = draw_length();
  }
}

std::vector<data::TensorSpec> WordSpans::tensors() const {
  return {{.name = "input_ids", .dtype = DType::I64, .shape = {options_.input_length}},
          {.name = "attention_mask",
           .dtype = DType::I64,
           .shape = {options_.input_length},
           .optional = true},
          {.name = "labels", .dtype = DType::I64, .shape = {options_.target_length}}};
}

void WordSpans::read(std::int64_t index, data::SampleWriter& out) const {
  TESSERA_ASSERT(arranged_);
  const auto [begin, end] = texts_.at(static_cast<std::size_t>(index));
  const std::vector<std::int32_t> ids(sentences_->tokens.begin() + begin,
                                      sentences_->tokens.begin() + end);
  const std::vector<WordSpan> spans = choose_word_spans(
      ids, options_, static_cast<std::uint64_t>(options_.dynamic ? out.number() : index));
  const std::span<std::int64_t> input = out.tensor<std::int64_t>("input_ids"),
                                mask = out.tensor<std::int64_t>("attention_mask"),
                                labels = out.tensor<std::int64_t>("labels");
  std::size_t i = 0, l = 0, at = 0;
  for (std::size_t s = 0; s < spans.size(); ++s) {
    const auto first = static_cast<std::size_t>(spans[s].first),
               last = static_cast<std::size_t>(spans[s].second);
    for (; at < first; ++at)
      input[i++] = ids[at];
    input[i++] = labels[l++] = options_.sentinels[s];
    for (; at < last; ++at)
      labels[l++] = ids[at];
  }
  for (; at < ids.size(); ++at)
    input[i++] = ids[at];
  labels[l++] = options_.end;
  std::fill(input.begin() + static_cast<std::ptrdiff_t>(i), input.end(), options_.pad);
  std::fill(labels.begin() + static_cast<std::ptrdiff_t>(l), labels.end(), kNothing);
  std::fill_n(mask.begin(), i, 1);
  std::fill(mask.begin() + static_cast<std::ptrdiff_t>(i), mask.end(), 0);
  if (i < mask.size()) out.need("attention_mask");
}

std::int64_t WordSpans::tokens() const {
  std::int64_t tokens = 0;
  for (const auto& [begin, end] : texts_)
    tokens += end - begin;
  return tokens;
}

std::string WordSpans::fingerprint() const {
  Fingerprint out;
  out.add(options_.text());
  out.add(sentences_->tokens);
  for (const auto& [first, last] : documents_) {
    out.add(first);
    out.add(last);
  }
  for (const std::int64_t begin : sentences_->begins)
    out.add(begin);
  return out.text();
}

}  // namespace tessera::tasks

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/sentence_pairs.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/data/sources.h"

namespace tessera::tasks {
namespace {

constexpr std::uint64_t kPairSite = 0x70616972;  // separates these random numbers from the masks'

}  // namespace

PairFrame pair_frame_of(const text::Tokenizer& tokenizer) {
  constexpr std::int32_t kFirst = -1, kSecond = -2;  // no tokens have these ids
  const text::JoinedIds joined = tokenizer.join({kFirst}, {kSecond});
  const auto first = std::ranges::find(joined.ids, kFirst) - joined.ids.begin();
  const auto second = std::ranges::find(joined.ids, kSecond) - joined.ids.begin();
  TESSERA_REQUIRE(
      first < second && second < std::ssize(joined.ids),
      Unsupported,
      fmt::format("the tokenizer {} does not put the first of two texts in front of the "
                  "second",
                  tokenizer.name()),
      "use another tokenizer, or set task.params.pairs to none");
  const auto part =
      [](const std::vector<std::int32_t>& of, std::ptrdiff_t from, std::ptrdiff_t to) {
        return std::vector<std::int32_t>(of.begin() + from, of.begin() + to);
      };
  const std::ptrdiff_t end = std::ssize(joined.ids);
  return {.before = part(joined.ids, 0, first),
          .between = part(joined.ids, first + 1, second),
          .after = part(joined.ids, second + 1, end),
          .before_types = part(joined.types, 0, first),
          .between_types = part(joined.types, first + 1, second),
          .after_types = part(joined.types, second + 1, end),
          .first_type = joined.types[static_cast<std::size_t>(first)],
          .second_type = joined.types[static_cast<std::size_t>(second)]};
}

SentencePairs::SentencePairs(SentencePairsOptions options)
    : options_(std::move(options)), sentences_(std::make_shared<Sentences>()) {
  TESSERA_ASSERT(options_.label != PairLabel::None && options_.copies > 0);
  constexpr std::int64_t kLeast = 2;  // a token of each text
  TESSERA_REQUIRE(
      options_.length >= options_.frame.size() + kLeast,
      Config,
      fmt::format("pairs of {} tokens have no room for a token of each text", options_.length),
      fmt::format("raise data.sequence_length to {} or more", options_.frame.size() + kLeast));
}

void SentencePairs::read_files(const std::vector<std::string>& names,
                               const text::Tokenizer& tokenizer,
                               const data::TokenizeOptions& how) {
  stats_ = read_sentences(names, tokenizer, how, *sentences_, documents_);
  const auto found = std::ranges::find_if(
      names, [](const std::string& name) { return data::names_token_file(name); });
  const bool several = std::ranges::any_of(
      documents_, [](const SentenceRange& one) { return one.second - one.first > 1; });
  TESSERA_REQUIRE(
      several || found == names.end(),
      Data,
      fmt::format("{} has tokens, and no documents of several sentences from which pairs can be "
                  "made",
                  *found),
      "make it with one sequence a sentence (preprocess_data.py --split-sentences), or name the "
      "text, with a sentence per line and a blank line after each document");
}

std::unique_ptr<RecordDataset> SentencePairs::split_off(std::int64_t count) {
  TESSERA_ASSERT(!arranged_);
  auto tail = std::make_unique<SentencePairs>(options_);
  tail->options_.copies = 1;
  tail->options_.masking.dynamic = false;
  tail->sentences_ = sentences_;
  tail->documents_ = take_tail(documents_, count);
  return tail;
}

void SentencePairs::reorder(const std::vector<std::int64_t>& order) {
  documents_ = reordered(documents_, order);
}

void SentencePairs::arrange() {
  arranged_ = true;
  TESSERA_REQUIRE(options_.label != PairLabel::NextSentence || documents_.size() != 1,
                  Data,
                  "all sentences are of one document, and next sentence prediction needs another",
                  "put a blank line after each document, or set task.params.pairs to sop");
  for (std::int64_t copy = 0; copy < options_.copies; ++copy) {
    for (std::size_t d = 0; d < documents_.size(); ++d)
      pair_up(d, copy);
  }
}

void SentencePairs::pair_up(std::size_t document, std::int64_t copy) {
  Draws draws(mix64(mix64(options_.masking.seed, kPairSite), static_cast<std::uint64_t>(copy)),
              document);
  const bool order = options_.label == PairLabel::SentenceOrder;
  const std::int64_t room = options_.length - options_.frame.size();
  const std::int64_t target =
      draws.share() <= options_.short_share ? 2 + draws.below(room - 1) : room;
  const std::int64_t end = documents_[document].second;
  std::int64_t begin = documents_[document].first;
  for (std::int64_t last = begin + 1; last <= end; ++last) {
    const std::int64_t count = last - begin;
    const bool full = tokens_of(begin, last).size() >= target && (!order || count > 1);
    if (!full && last < end) continue;
    if (order && count == 1) return;  // the last sentence has no other
    const std::int64_t middle = begin + 1 + (count > 1 ? draws.below(count - 1) : 0);
    const Range first = tokens_of(begin, middle), second = tokens_of(middle, last);
    if (order) {
      const bool exchanged = draws.half();
      add(exchanged ? second : first, exchanged ? first : second, exchanged, draws);
      begin = last;
    } else if (count == 1 || draws.half()) {
      add(first, from_another(document, target - first.size(), draws), true, draws);
      begin = middle;  // the sentences that were not used
      last = middle;
    } else {
      add(first, second, false, draws);
      begin = last;
    }
  }
}

SentencePairs::Range SentencePairs::from_another(std::size_t document,
                                                 std::int64_t size,
                                                 Draws& draws) const {
  auto other = static_cast<std::size_t>(draws.below(std::ssize(documents_) - 1));
  if (other >= document) ++other;
  const auto [begin, end] = documents_[other];
  const std::int64_t first = begin + draws.below(end - begin);
  std::int64_t last = first + 1;
  while (last < end && tokens_of(first, last).size() < size)
    ++last;
  return tokens_of(first, last);
}

void SentencePairs::add(Range first, Range second, bool label, Draws& draws) {
  const std::int64_t room = options_.length - options_.frame.size();
  while (first.size() + second.size() > room) {
    Range& longer = first.size() > second.size() ? first : second;
    if (draws.half()) {
      ++longer.begin;
    } else {
      --longer.end;
    }
  }
  pairs_.push_back({first, second, label});
}

std::vector<data::TensorSpec> SentencePairs::tensors() const {
  const std::int64_t length = options_.length;
  return {{.name = "input_ids", .dtype = DType::I64, .shape = {length}},
          {.name = "labels", .dtype = DType::I64, .shape = {length}},
          {.name = "token_type_ids", .dtype = DType::I64, .shape = {length}},
          {.name = "pair_label", .dtype = DType::I64},
          {.name = "attention_mask", .dtype = DType::I64, .shape = {length}, .optional = true}};
}

void SentencePairs::read(std::int64_t index, data::SampleWriter& out) const {
  TESSERA_ASSERT(arranged_);
  const Pair& pair = pairs_.at(static_cast<std::size_t>(index));
  const PairFrame& frame = options_.frame;
  const std::span<std::int64_t> ids = out.tensor<std::int64_t>("input_ids");
  const std::span<std::int64_t> types = out.tensor<std::int64_t>("token_type_ids");
  const std::span<std::int64_t> mask = out.tensor<std::int64_t>("attention_mask");
  std::ranges::fill(ids, options_.pad_id);
  std::ranges::fill(types, 0);
  std::size_t t = 0;
  const auto put = [&](std::int32_t id, std::int32_t type) {
    ids[t] = id;
    types[t++] = type;
  };
  const auto put_all = [&](const std::vector<std::int32_t>& some,
                           const std::vector<std::int32_t>& their_types) {
    for (std::size_t i = 0; i < some.size(); ++i)
      put(some[i], their_types[i]);
  };
  const auto put_text = [&](Range range, std::int32_t type) {
    for (std::int64_t i = range.begin; i < range.end; ++i)
      put(sentences_->tokens[static_cast<std::size_t>(i)], type);
  };
  put_all(frame.before, frame.before_types);
  put_text(pair.first, frame.first_type);
  put_all(frame.between, frame.between_types);
  put_text(pair.second, frame.second_type);
  put_all(frame.after, frame.after_types);
  std::fill(mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(t), 1);
  std::fill(mask.begin() + static_cast<std::ptrdiff_t>(t), mask.end(), 0);
  if (t < ids.size()) out.need("attention_mask");
  mask_tokens(options_.masking,
              static_cast<std::uint64_t>(options_.masking.dynamic ? out.number() : index),
              ids,
              out.tensor<std::int64_t>("labels"),
              mask);
  out.set("pair_label", static_cast<std::int64_t>(pair.label ? 1 : 0));
}

std::int64_t SentencePairs::tokens() const {
  std::int64_t tokens = 0;
  for (const Pair& pair : pairs_)
    tokens += pair.first.size() + pair.second.size() + options_.frame.size();
  return tokens;
}

std::string SentencePairs::fingerprint() const {
  Fingerprint out;
  out.add(options_.length);
  out.add(static_cast<std::int64_t>(options_.label));
  out.add(text::number(options_.short_share));
  out.add(options_.copies);
  out.add(options_.masking.text());
  for (const auto* ids : {&options_.frame.before, &options_.frame.between, &options_.frame.after})
    out.add(*ids);
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

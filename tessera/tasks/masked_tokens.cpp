// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/masked_tokens.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kNoLabel = -100;
constexpr std::uint64_t kSite = 0x6D61736B;  // separates these random numbers from the model's

/// A number below `bound` from 64 random bits; bounds are far below 2^32, so all results are
/// practically equally likely.
std::int64_t below(std::int64_t bound, std::uint32_t hi, std::uint32_t lo) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(hi) << 32) | lo;
  return static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(bound));
}

}  // namespace

std::string Masking::text() const {
  return fmt::format("{} {} {} {} {} [{}] {} {}",
                     text::number(probability),
                     text::number(mask_share),
                     text::number(random_share),
                     mask_id,
                     vocab_size,
                     fmt::join(never, ","),
                     seed,
                     dynamic) +
         (begins_word.empty() ? "" : " words");
}

std::vector<bool> word_beginnings(const text::Tokenizer& tokenizer) {
  std::vector<bool> out;
  for (std::int64_t id = 0; id < tokenizer.size(); ++id) {
    const std::string_view bytes = tokenizer.bytes_of(static_cast<std::int32_t>(id));
    out.push_back(!bytes.empty() &&
                  std::string_view(" \t\r\n").find(bytes[0]) != std::string_view::npos);
  }
  return out;
}

void mask_tokens(const Masking& masking,
                 std::uint64_t sample,
                 std::span<std::int64_t> ids,
                 std::span<std::int64_t> labels,
                 std::span<const std::int64_t> mask) {
  std::fill(labels.begin(), labels.end(), kNoLabel);
  const Philox random{mix64(masking.seed, kSite)};
  const auto may_be_chosen = [&](std::size_t t) {
    const auto& never = masking.never;
    return mask[t] != 0 && std::find(never.begin(), never.end(), ids[t]) == never.end();
  };
  const auto hide = [&](std::size_t t) {
    const Philox::Block words = random(2 * t + 1, sample);
    const double share = uniform_double(words[0], words[1]);
    labels[t] = ids[t];
    if (share <= masking.mask_share) {
      ids[t] = masking.mask_id;
    } else if (share <= masking.mask_share + masking.random_share) {
      ids[t] = below(masking.vocab_size, words[2], words[3]);
    }
  };
  // True if the token belongs to the same word as the previous one, which may be chosen.
  const auto goes_on = [&](std::size_t t) {
    const auto& begins = masking.begins_word;
    const auto id = static_cast<std::size_t>(ids[t]);
    return id < begins.size() && !begins[id];
  };
  // Words as (first token, token after the last).
  std::vector<std::pair<std::size_t, std::size_t>> words;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    if (!may_be_chosen(t)) continue;
    if (!words.empty() && words.back().second == t && goes_on(t)) {
      words.back().second = t + 1;
    } else {
      words.emplace_back(t, t + 1);
    }
  }
  const auto hide_word = [&](const std::pair<std::size_t, std::size_t>& word) {
    for (std::size_t t = word.first; t < word.second; ++t)
      hide(t);
  };
  bool chosen = false;
  std::optional<std::pair<double, std::pair<std::size_t, std::size_t>>> nearest;
  for (const auto& word : words) {
    const Philox::Block draws = random(2 * word.first, sample);
    const double draw = uniform_double(draws[0], draws[1]);
    if (!nearest || draw < nearest->first) nearest = {draw, word};
    if (draw > masking.probability) continue;
    hide_word(word);
    chosen = true;
  }
  if (!chosen && nearest) hide_word(nearest->second);
}

MaskedTokens::MaskedTokens(std::unique_ptr<data::TokenDataset> tokens, Masking masking)
    : tokens_(std::move(tokens)), masking_(std::move(masking)) {
  TESSERA_ASSERT(tokens_ != nullptr && masking_.vocab_size > 0);
}

std::vector<data::TensorSpec> MaskedTokens::tensors() const {
  const std::int64_t length = tokens_->length();
  std::vector<data::TensorSpec> out = {
      {.name = "input_ids", .dtype = DType::I64, .shape = {length}},
      {.name = "labels", .dtype = DType::I64, .shape = {length}},
      {.name = "attention_mask", .dtype = DType::I64, .shape = {length}, .optional = true}};
  if (tokens_->separates_documents())
    out.push_back({.name = "document_starts", .dtype = DType::I64, .shape = {length}});
  return out;
}

void MaskedTokens::read(std::int64_t index, data::SampleWriter& out) const {
  const std::span<std::int64_t> ids = out.tensor<std::int64_t>("input_ids");
  const std::span<std::int64_t> labels = out.tensor<std::int64_t>("labels");
  const std::span<std::int64_t> mask = out.tensor<std::int64_t>("attention_mask");
  if (tokens_->get(index, ids.data(), labels.data(), mask.data())) out.need("attention_mask");
  // A replaced token may become an end of text by chance.
  if (tokens_->separates_documents())
    tokens_->document_starts(ids.data(), out.tensor<std::int64_t>("document_starts").data());
  mask_tokens(masking_,
              static_cast<std::uint64_t>(masking_.dynamic ? out.number() : index),
              ids,
              labels,
              mask);
}

}  // namespace tessera::tasks

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/text_pairs.h"

#include <algorithm>
#include <span>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kIgnored = -100;

}  // namespace

std::vector<std::int32_t> ids_with_end(std::string_view text, const text::Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  const std::int32_t end = tokenizer.end_of_text();
  if (ids.empty() || ids.back() != end) ids.push_back(end);
  return ids;
}

TextPairs::TextPairs(std::int64_t source_length, std::int64_t target_length, std::int32_t end)
    : source_length_(source_length), target_length_(target_length), end_(end) {
  TESSERA_ASSERT(source_length > 0 && target_length > 0);
}

TextPairs::Ids TextPairs::ids_of(const std::string& text,
                                 std::int64_t length,
                                 const text::Tokenizer& tokenizer) {
  Ids ids = ids_with_end(text, tokenizer);
  if (static_cast<std::int64_t>(ids.size()) > length) {
    ids.resize(static_cast<std::size_t>(length));
    ids.back() = end_;
    ++cut_;
  }
  stats_.bytes += static_cast<std::int64_t>(text.size());
  stats_.tokens += static_cast<std::int64_t>(ids.size());
  return ids;
}

void TextPairs::read_files(const std::vector<std::string>& files,
                           const data::RecordOptions& how,
                           const PairFields& fields,
                           const text::Tokenizer& tokenizer,
                           const std::function<void()>& poll) {
  read_records(files, how, poll, [&](const data::Record& record) {
    const std::string source = text_of(record, fields.source, "source_field");
    const std::string target = text_of(record, fields.target, "target_field");
    samples_.push_back({ids_of(fields.prefix + source, source_length_, tokenizer),
                        ids_of(target, target_length_, tokenizer)});
  });
}

std::unique_ptr<RecordDataset> TextPairs::split_off(std::int64_t count) {
  auto tail = std::make_unique<TextPairs>(source_length_, target_length_, end_);
  tail->samples_ = take_tail(samples_, count);
  return tail;
}

void TextPairs::reorder(const std::vector<std::int64_t>& order) {
  samples_ = reordered(samples_, order);
}

std::vector<data::TensorSpec> TextPairs::tensors() const {
  return {
      {.name = "input_ids", .dtype = DType::I64, .shape = {source_length_}},
      {.name = "attention_mask", .dtype = DType::I64, .shape = {source_length_}, .optional = true},
      {.name = "labels", .dtype = DType::I64, .shape = {target_length_}}};
}

void TextPairs::read(std::int64_t index, data::SampleWriter& out) const {
  const Pair& pair = samples_.at(static_cast<std::size_t>(index));
  const std::span<std::int64_t> ids = out.tensor<std::int64_t>("input_ids");
  const std::span<std::int64_t> mask = out.tensor<std::int64_t>("attention_mask");
  const std::span<std::int64_t> labels = out.tensor<std::int64_t>("labels");
  const auto read = static_cast<std::ptrdiff_t>(pair.source.size());
  std::fill(std::copy(pair.source.begin(), pair.source.end(), ids.begin()), ids.end(), end_);
  std::fill(mask.begin(), mask.begin() + read, 1);
  std::fill(mask.begin() + read, mask.end(), 0);
  if (read < std::ssize(mask)) out.need("attention_mask");
  std::fill(
      std::copy(pair.target.begin(), pair.target.end(), labels.begin()), labels.end(), kIgnored);
}

std::int64_t TextPairs::tokens() const {
  std::int64_t tokens = 0;
  for (const Pair& pair : samples_)
    tokens += std::ssize(pair.source) + std::ssize(pair.target);
  return tokens;
}

std::string TextPairs::fingerprint() const {
  Fingerprint out;
  out.add(source_length_);
  out.add(target_length_);
  for (const Pair& pair : samples_) {
    out.add(pair.source);
    out.add(pair.target);
  }
  return out.text();
}

}  // namespace tessera::tasks

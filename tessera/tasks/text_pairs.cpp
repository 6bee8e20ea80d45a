// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/text_pairs.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kIgnored = -100;

std::string example_of(const PairFields& fields) {
  return fmt::format("{{\"{}\": \"...\", \"{}\": \"...\"}}", fields.source, fields.target);
}

}  // namespace

TextPairs::TextPairs(std::int64_t source_length, std::int64_t target_length, std::int32_t end)
    : source_length_(source_length), target_length_(target_length), end_(end) {
  TESSERA_ASSERT(source_length > 0 && target_length > 0);
}

TextPairs::Ids TextPairs::ids_of(const std::string& text,
                                 std::int64_t length,
                                 const data::Tokenizer& tokenizer) {
  Ids ids;
  tokenizer.encode(text, ids);
  if (ids.empty() || ids.back() != end_) ids.push_back(end_);
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
                           const PairFields& fields,
                           const data::Tokenizer& tokenizer,
                           const std::function<void()>& poll) {
  constexpr std::int64_t kPollEvery = 1024;
  const std::string example = example_of(fields);
  stats_.skipped_empty += for_each_record(files, example, [&](const RecordLine& line) {
    if (poll && stats_.documents % kPollEvery == 0) poll();
    const json::Value record =
        record_of(line, example, fields.replace_invalid_utf8, stats_.replaced_utf8);
    const std::string& source = text_of(line, record, fields.source, "source_field");
    const std::string& target = text_of(line, record, fields.target, "target_field");
    samples_.push_back({ids_of(fields.prefix + source, source_length_, tokenizer),
                        ids_of(target, target_length_, tokenizer)});
    ++stats_.documents;
  });
}

std::unique_ptr<RecordDataset> TextPairs::split_off(std::int64_t count) {
  TESSERA_ASSERT(count >= 0 && count <= size());
  auto tail = std::make_unique<TextPairs>(source_length_, target_length_, end_);
  tail->samples_.assign(std::make_move_iterator(samples_.end() - count),
                        std::make_move_iterator(samples_.end()));
  samples_.resize(samples_.size() - static_cast<std::size_t>(count));
  return tail;
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
  std::string bytes = fmt::format("{} {}", source_length_, target_length_);
  for (const Pair& pair : samples_) {
    for (const Ids* ids : {&pair.source, &pair.target}) {
      bytes += fmt::format("|{}:", ids->size());
      bytes += std::string_view(reinterpret_cast<const char*>(ids->data()),
                                ids->size() * sizeof(std::int32_t));
    }
  }
  return files::hex64(files::xxh3(std::as_bytes(std::span(bytes))));
}

}  // namespace tessera::tasks

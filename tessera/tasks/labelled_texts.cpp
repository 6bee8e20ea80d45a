// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/labelled_texts.h"

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

LabelledTexts::LabelledTexts(std::int64_t length, std::int32_t pad_id, Labels labels)
    : length_(length), pad_id_(pad_id), labels_(std::move(labels)) {
  TESSERA_ASSERT(length > 0);
}

void LabelledTexts::read_files(const std::vector<std::string>& files,
                               const RecordFields& fields,
                               const data::Tokenizer& tokenizer,
                               const std::function<void()>& poll) {
  constexpr std::int64_t kPollEvery = 1024;
  stats_.skipped_empty += for_each_line(files, [&](const Line& line) {
    if (poll && stats_.documents % kPollEvery == 0) poll();
    const json::Value record = parse_record(line, fields, stats_.replaced_utf8);
    const json::Value& text = member(line, record, fields.text, "text_field");
    if (!text.is_string() || text.as_string().empty()) {
      refuse(line,
             text.is_string() ? fmt::format("\"{}\" is empty", fields.text)
                              : fmt::format("\"{}\" is {}", fields.text, text.type_name()),
             "give every record a text");
    }
    Record sample;
    tokenizer.encode(text.as_string(), sample.ids);
    const json::Value& label = member(line, record, fields.label, "label_field");
    sample.label = id_in(line, label_of(line, label, fields.label), labels_);
    if (static_cast<std::int64_t>(sample.ids.size()) > length_) {
      sample.ids.resize(static_cast<std::size_t>(length_));
      ++cut_;
    }
    ++stats_.documents;
    stats_.bytes += static_cast<std::int64_t>(text.as_string().size());
    stats_.tokens += static_cast<std::int64_t>(sample.ids.size());
    samples_.push_back(std::move(sample));
  });
}

std::unique_ptr<LabelledTexts> LabelledTexts::split_off(std::int64_t count) {
  TESSERA_ASSERT(count >= 0 && count <= size());
  auto tail = std::make_unique<LabelledTexts>(length_, pad_id_, labels_);
  tail->samples_.assign(std::make_move_iterator(samples_.end() - count),
                        std::make_move_iterator(samples_.end()));
  samples_.resize(samples_.size() - static_cast<std::size_t>(count));
  return tail;
}

std::vector<data::TensorSpec> LabelledTexts::tensors() const {
  return {{.name = "input_ids", .dtype = DType::I64, .shape = {length_}},
          {.name = "attention_mask", .dtype = DType::I64, .shape = {length_}, .optional = true},
          {.name = "label", .dtype = DType::I64}};
}

void LabelledTexts::read(std::int64_t index, data::SampleWriter& out) const {
  const Record& sample = samples_.at(static_cast<std::size_t>(index));
  const std::span<std::int64_t> ids = out.tensor<std::int64_t>("input_ids");
  const std::span<std::int64_t> mask = out.tensor<std::int64_t>("attention_mask");
  const auto padding = static_cast<std::ptrdiff_t>(sample.ids.size());
  std::copy(sample.ids.begin(), sample.ids.end(), ids.begin());
  std::fill(ids.begin() + padding, ids.end(), pad_id_);
  std::fill(mask.begin(), mask.begin() + padding, 1);
  std::fill(mask.begin() + padding, mask.end(), 0);
  if (padding < std::ssize(mask)) out.need("attention_mask");
  out.set("label", sample.label);
}

std::vector<std::int64_t> LabelledTexts::label_counts() const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(labels_.size()), 0);
  for (const Record& sample : samples_)
    ++counts[static_cast<std::size_t>(sample.label)];
  return counts;
}

std::int64_t LabelledTexts::tokens() const {
  std::int64_t tokens = 0;
  for (const Record& sample : samples_)
    tokens += std::ssize(sample.ids);
  return tokens;
}

std::string LabelledTexts::fingerprint() const {
  std::string bytes = std::to_string(length_);
  const auto add = [&bytes](std::string_view part) {
    bytes += fmt::format("|{}:{}", part.size(), part);
  };
  for (const std::string& name : labels_.names())
    add(name);
  for (const Record& sample : samples_) {
    bytes += fmt::format("|{}=", sample.label);
    add({reinterpret_cast<const char*>(sample.ids.data()),
         sample.ids.size() * sizeof(std::int32_t)});
  }
  return files::hex64(files::xxh3(std::as_bytes(std::span(bytes))));
}

}  // namespace tessera::tasks

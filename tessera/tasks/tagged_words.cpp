// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/tagged_words.h"

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

constexpr std::int32_t kNoTag = -100;

const std::vector<json::Value>& list_of(const Line& line,
                                        const json::Value& record,
                                        const std::string& field,
                                        const char* option) {
  const json::Value& value = member(line, record, field, option);
  if (!value.is_array()) {
    refuse(line,
           fmt::format("\"{}\" is {}", field, value.type_name()),
           "give a list of words and a list of as many tags");
  }
  return value.items();
}

/// A record's words, and their tags.
struct Words {
  const std::vector<json::Value>& words;
  const std::vector<json::Value>& tags;
};

Words words_of(const Line& line, const json::Value& record, const RecordFields& fields) {
  const Words out = {list_of(line, record, fields.text, "tokens_field"),
                     list_of(line, record, fields.label, "tags_field")};
  if (out.words.size() != out.tags.size()) {
    refuse(line,
           fmt::format("{} words and {} tags", out.words.size(), out.tags.size()),
           "give every word a tag");
  }
  for (const json::Value& word : out.words) {
    if (!word.is_string())
      refuse(line, fmt::format("a word is {}", word.dump()), "give words as texts");
  }
  return out;
}

}  // namespace

Labels tags_found_in(const std::vector<std::string>& files, const RecordFields& fields) {
  std::int64_t replaced = 0;
  LabelCollector found;
  for_each_line(files, [&](const Line& line) {
    const json::Value record = parse_record(line, fields, replaced);
    for (const json::Value& tag : words_of(line, record, fields).tags)
      found.add(line, label_of(line, tag, fields.label));
  });
  return found.labels();
}

TaggedWords::TaggedWords(std::int64_t length, std::int32_t pad_id, Labels tags)
    : length_(length), pad_id_(pad_id), tags_(std::move(tags)) {
  TESSERA_ASSERT(length > 0);
}

void TaggedWords::read_files(const std::vector<std::string>& files,
                             const RecordFields& fields,
                             const data::Tokenizer& tokenizer,
                             const std::function<void()>& poll) {
  constexpr std::int64_t kPollEvery = 1024;
  const std::vector<std::int32_t> beginning = tokenizer.beginning(), ending = tokenizer.ending();
  const std::int64_t room = length_ - std::ssize(ending);
  TESSERA_REQUIRE(room > std::ssize(beginning),
                  Config,
                  fmt::format("texts of {} tokens have no room for one of their own", length_),
                  "raise data.sequence_length");
  stats_.skipped_empty += for_each_line(files, [&](const Line& line) {
    if (poll && stats_.documents % kPollEvery == 0) poll();
    const json::Value record = parse_record(line, fields, stats_.replaced_utf8);
    const Words words = words_of(line, record, fields);
    Record sample{beginning, std::vector<std::int32_t>(beginning.size(), kNoTag)};
    for (std::size_t i = 0; i < words.words.size(); ++i) {
      const std::string& word = words.words[i].as_string();
      const std::size_t before = sample.ids.size();
      tokenizer.encode(i == 0 ? word : " " + word, sample.ids);
      const std::int64_t tag = id_in(line, label_of(line, words.tags[i], fields.label), tags_);
      sample.tags.resize(sample.ids.size(), kNoTag);
      if (sample.ids.size() > before) sample.tags[before] = static_cast<std::int32_t>(tag);
      stats_.bytes += std::ssize(word);
    }
    if (sample.ids.size() == beginning.size())
      refuse(line, "the text has no token", "give every record words");
    if (std::ssize(sample.ids) > room) {
      sample.ids.resize(static_cast<std::size_t>(room));
      sample.tags.resize(static_cast<std::size_t>(room));
      ++cut_;
    }
    sample.ids.insert(sample.ids.end(), ending.begin(), ending.end());
    sample.tags.resize(sample.ids.size(), kNoTag);
    ++stats_.documents;
    stats_.tokens += std::ssize(sample.ids);
    samples_.push_back(std::move(sample));
  });
}

std::unique_ptr<TaggedWords> TaggedWords::split_off(std::int64_t count) {
  TESSERA_ASSERT(count >= 0 && count <= size());
  auto tail = std::make_unique<TaggedWords>(length_, pad_id_, tags_);
  tail->samples_.assign(std::make_move_iterator(samples_.end() - count),
                        std::make_move_iterator(samples_.end()));
  samples_.resize(samples_.size() - static_cast<std::size_t>(count));
  return tail;
}

std::vector<data::TensorSpec> TaggedWords::tensors() const {
  return {{.name = "input_ids", .dtype = DType::I64, .shape = {length_}},
          {.name = "attention_mask", .dtype = DType::I64, .shape = {length_}, .optional = true},
          {.name = "labels", .dtype = DType::I64, .shape = {length_}}};
}

void TaggedWords::read(std::int64_t index, data::SampleWriter& out) const {
  const Record& sample = samples_.at(static_cast<std::size_t>(index));
  const std::span<std::int64_t> ids = out.tensor<std::int64_t>("input_ids"),
                                mask = out.tensor<std::int64_t>("attention_mask"),
                                labels = out.tensor<std::int64_t>("labels");
  const auto padding = std::ssize(sample.ids);
  std::ranges::copy(sample.ids, ids.begin());
  std::fill(ids.begin() + padding, ids.end(), pad_id_);
  std::ranges::copy(sample.tags, labels.begin());
  std::fill(labels.begin() + padding, labels.end(), kNoTag);
  std::fill(mask.begin(), mask.begin() + padding, 1);
  std::fill(mask.begin() + padding, mask.end(), 0);
  if (padding < std::ssize(mask)) out.need("attention_mask");
}

std::int64_t TaggedWords::tokens() const {
  std::int64_t tokens = 0;
  for (const Record& sample : samples_)
    tokens += std::ssize(sample.ids);
  return tokens;
}

std::string TaggedWords::fingerprint() const {
  std::string bytes = std::to_string(length_);
  const auto add = [&bytes](std::string_view part) {
    bytes += fmt::format("|{}:{}", part.size(), part);
  };
  const auto add_numbers = [&](const std::vector<std::int32_t>& numbers) {
    add({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::int32_t)});
  };
  for (const std::string& name : tags_.names())
    add(name);
  for (const Record& sample : samples_) {
    add_numbers(sample.ids);
    add_numbers(sample.tags);
  }
  return files::hex64(files::xxh3(std::as_bytes(std::span(bytes))));
}

}  // namespace tessera::tasks

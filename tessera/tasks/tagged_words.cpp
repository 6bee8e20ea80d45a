// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/tagged_words.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"

namespace tessera::tasks {
namespace {

constexpr std::int32_t kNoTag = -100;

// A list, or a text of parts between spaces, as tables have it.
std::vector<json::Value> list_of(const data::Record& record,
                                 const std::string& field,
                                 const char* option) {
  const json::Value& value = field_of(record, field, option);
  if (value.is_array()) return value.items();
  if (!value.is_string()) {
    record.refuse(fmt::format("\"{}\" is {}", field, value.type_name()),
                  "give a list of words and a list of as many tags, or texts with spaces between "
                  "them");
  }
  std::vector<json::Value> out;
  for (const std::string& part : text::split(value.as_string(), ' ')) {
    if (!part.empty()) out.push_back(json::Value::string(part));
  }
  return out;
}

/// A record's words and tags.
struct Words {
  std::vector<json::Value> words, tags;
};

Words words_of(const data::Record& record, const WordFields& fields) {
  const bool tagged = !fields.tags.empty();
  const Words out = {
      list_of(record, fields.words, "tokens_field"),
      tagged ? list_of(record, fields.tags, "tags_field") : std::vector<json::Value>{}};
  if (tagged && out.words.size() != out.tags.size()) {
    record.refuse(fmt::format("{} words and {} tags", out.words.size(), out.tags.size()),
                  "give every word a tag");
  }
  for (const json::Value& word : out.words) {
    if (!word.is_string())
      record.refuse(fmt::format("a word is {}", word.dump()), "give words as texts");
  }
  return out;
}

}  // namespace

WordFields published_fields(const data::Record& record, WordFields fields) {
  const auto has = [&](const char* name) { return record.value.find(name) != nullptr; };
  if (fields.words == "tokens" && !has("tokens") && has("words")) fields.words = "words";
  if (fields.tags != "tags" || has("tags")) return fields;
  for (const char* name : {"ner_tags", "ner", "pos_tags"}) {
    if (!has(name)) continue;
    fields.tags = name;
    break;
  }
  return fields;
}

Labels tags_found_in(const std::vector<std::string>& files,
                     const data::RecordOptions& how,
                     const WordFields& fields,
                     const std::vector<std::string>& named) {
  LabelCollector found(named);
  for_each_record(files, how, [&](const data::Record& record) {
    const WordFields own = published_fields(record, fields);
    for (const json::Value& tag : words_of(record, own).tags)
      found.add(record, label_of(record, tag, own.tags));
  });
  return found.labels();
}

TaggedWords::TaggedWords(std::int64_t length, std::int32_t pad_id, Labels tags)
    : length_(length), pad_id_(pad_id), tags_(std::move(tags)) {
  TESSERA_ASSERT(length > 0);
}

void TaggedWords::read_files(const std::vector<std::string>& files,
                             const data::RecordOptions& how,
                             const WordFields& fields,
                             const text::Tokenizer& tokenizer,
                             const std::function<void()>& poll) {
  const std::vector<std::int32_t> beginning = tokenizer.beginning(), ending = tokenizer.ending();
  const std::int64_t room = length_ - std::ssize(ending);
  TESSERA_REQUIRE(room > std::ssize(beginning),
                  Config,
                  fmt::format("texts of {} tokens have no room for one of their own", length_),
                  "raise data.sequence_length");
  read_records(files, how, poll, [&](const data::Record& record) {
    const WordFields own = published_fields(record, fields);
    const Words words = words_of(record, own);
    Record sample{beginning, std::vector<std::int32_t>(beginning.size(), kNoTag)};
    for (std::size_t i = 0; i < words.words.size(); ++i) {
      const std::string& word = words.words[i].as_string();
      const std::size_t before = sample.ids.size();
      tokenizer.encode(i == 0 ? word : " " + word, sample.ids);
      const std::int64_t tag =
          words.tags.empty() ? 0 : id_in(record, label_of(record, words.tags[i], own.tags), tags_);
      sample.tags.resize(sample.ids.size(), kNoTag);
      const bool has_token = sample.ids.size() > before;
      if (has_token) sample.tags[before] = static_cast<std::int32_t>(tag);
      sample.words.push_back(has_token ? static_cast<std::int32_t>(before) : -1);
      stats_.bytes += std::ssize(word);
    }
    if (sample.ids.size() == beginning.size())
      record.refuse("the text has no token", "give every record words");
    if (std::ssize(sample.ids) > room) {
      sample.ids.resize(static_cast<std::size_t>(room));
      sample.tags.resize(static_cast<std::size_t>(room));
      for (std::int32_t& word : sample.words)
        word = word < room ? word : -1;
      ++cut_;
    }
    sample.ids.insert(sample.ids.end(), ending.begin(), ending.end());
    sample.tags.resize(sample.ids.size(), kNoTag);
    stats_.tokens += std::ssize(sample.ids);
    samples_.push_back(std::move(sample));
  });
}

std::unique_ptr<RecordDataset> TaggedWords::split_off(std::int64_t count) {
  auto tail = std::make_unique<TaggedWords>(length_, pad_id_, tags_);
  tail->samples_ = take_tail(samples_, count);
  return tail;
}

LabelsOfSamples TaggedWords::strata() const {
  LabelsOfSamples out;
  for (const Record& sample : samples_) {
    std::set<std::int64_t> tags(sample.tags.begin(), sample.tags.end());
    tags.erase(kNoTag);
    out.emplace_back(tags.begin(), tags.end());
  }
  return out;
}

void TaggedWords::reorder(const std::vector<std::int64_t>& order) {
  samples_ = reordered(samples_, order);
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

TaggedWords::ClassCounts TaggedWords::class_counts() const {
  ClassCounts out;
  for (const std::string& name : tags_.names())
    out.emplace_back(name, 0);
  for (const Record& sample : samples_) {
    for (const std::int32_t tag : sample.tags) {
      if (tag != kNoTag && !out.empty()) ++out.at(static_cast<std::size_t>(tag)).second;
    }
  }
  return out;
}

std::vector<std::int64_t> TaggedWords::places(std::int64_t index) const {
  std::vector<std::int64_t> out;
  std::int64_t row = 0;
  for (const std::int32_t word : samples_.at(static_cast<std::size_t>(index)).words)
    out.push_back(word < 0 ? -1 : row++);
  return out;
}

std::string TaggedWords::fingerprint() const {
  Fingerprint out;
  out.add(length_);
  for (const std::string& name : tags_.names())
    out.add(name);
  for (const Record& sample : samples_) {
    out.add(sample.ids);
    out.add(sample.tags);
  }
  return out.text();
}

}  // namespace tessera::tasks

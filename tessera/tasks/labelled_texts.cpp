// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/labelled_texts.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kMostLabels = 1'000'000;

std::string example_of(const RecordFields& fields) {
  return fmt::format("{{\"{}\": \"...\", \"{}\": \"...\"}}", fields.text, fields.label);
}

/// A record's label: a name, or an integer.
struct Label {
  std::string name;
  std::optional<std::int64_t> id;
};

Label label_of(const RecordLine& line, const json::Value& record, const RecordFields& fields) {
  const json::Value& value = field_of(line, record, fields.label, "label_field");
  if (value.is_string()) return {value.as_string(), std::nullopt};
  const std::optional<std::int64_t> id =
      value.is_number() ? value.as_integer() : std::optional<std::int64_t>();
  if (!id || *id < 0 || *id >= kMostLabels) {
    line.refuse(fmt::format("the label \"{}\" is {}", fields.label, value.dump()),
                fmt::format("give a name or an integer from 0 to {}", kMostLabels - 1));
  }
  return {std::to_string(*id), id};
}

std::int64_t id_in(const RecordLine& line, const Label& label, const Labels& labels) {
  if (label.id && *label.id < labels.size()) return *label.id;
  if (!label.id) {
    if (const auto id = labels.id_of(label.name)) return *id;
  }
  line.refuse(fmt::format("the label \"{}\" is none of the {} labels", label.name, labels.size()),
              label.id ? fmt::format("give integers from 0 to {}, or name more labels in "
                                     "task.params.labels",
                                     labels.size() - 1)
                       : text::suggestion(label.name, labels.names()));
}

}  // namespace

Labels Labels::named(std::vector<std::string> names) {
  Labels out;
  out.names_ = std::move(names);
  return out;
}

Labels Labels::found_in(const std::vector<std::string>& files, const RecordFields& fields) {
  std::set<std::string> names;
  std::int64_t largest = -1, replaced = 0;
  const std::string example = example_of(fields);
  for_each_record(files, example, [&](const RecordLine& line) {
    const json::Value record = record_of(line, example, fields.replace_invalid_utf8, replaced);
    const Label label = label_of(line, record, fields);
    if (label.id ? !names.empty() : largest >= 0) {
      line.refuse(fmt::format("the label is {}, and that of earlier records is {}",
                              label.id ? "an integer" : "a name",
                              label.id ? "a name" : "an integer"),
                  "give names or integers in all records, or all names in task.params.labels");
    }
    if (label.id) {
      largest = std::max(largest, *label.id);
    } else {
      names.insert(label.name);
    }
  });
  if (largest < 0) return named({names.begin(), names.end()});
  Labels out;
  for (std::int64_t id = 0; id <= largest; ++id)
    out.names_.push_back(std::to_string(id));
  return out;
}

std::optional<std::int64_t> Labels::id_of(const std::string& name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  if (at == names_.end()) return std::nullopt;
  return at - names_.begin();
}

LabelledTexts::LabelledTexts(std::int64_t length, std::int32_t pad_id, Labels labels)
    : length_(length), pad_id_(pad_id), labels_(std::move(labels)) {
  TESSERA_ASSERT(length > 0);
}

void LabelledTexts::read_files(const std::vector<std::string>& files,
                               const RecordFields& fields,
                               const data::Tokenizer& tokenizer,
                               const std::function<void()>& poll) {
  constexpr std::int64_t kPollEvery = 1024;
  const std::string example = example_of(fields);
  stats_.skipped_empty += for_each_record(files, example, [&](const RecordLine& line) {
    if (poll && stats_.documents % kPollEvery == 0) poll();
    const json::Value record =
        record_of(line, example, fields.replace_invalid_utf8, stats_.replaced_utf8);
    const std::string& text = text_of(line, record, fields.text, "text_field");
    Record sample;
    tokenizer.encode(text, sample.ids);
    sample.label = id_in(line, label_of(line, record, fields), labels_);
    if (static_cast<std::int64_t>(sample.ids.size()) > length_) {
      sample.ids.resize(static_cast<std::size_t>(length_));
      ++cut_;
    }
    ++stats_.documents;
    stats_.bytes += static_cast<std::int64_t>(text.size());
    stats_.tokens += static_cast<std::int64_t>(sample.ids.size());
    samples_.push_back(std::move(sample));
  });
}

std::unique_ptr<RecordDataset> LabelledTexts::split_off(std::int64_t count) {
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

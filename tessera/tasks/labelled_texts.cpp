// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/labelled_texts.h"

#include <algorithm>
#include <filesystem>
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
#include "tessera/data/sources.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kMostLabels = 1'000'000;

/// A line of a file.
struct Line {
  std::string_view text;
  std::string place;  ///< "train.jsonl:12"
};

[[noreturn]] void refuse(const Line& line, const std::string& what, std::string fix) {
  throw Error(Error::Kind::Data, fmt::format("{}: {}", line.place, what), std::move(fix));
}

/// Calls fn(line) for every line of the files that is not blank; returns the number of blank ones.
template <class Fn>
std::int64_t for_each_line(const std::vector<std::string>& files, Fn fn) {
  std::int64_t blank = 0;
  for (const data::Source& source :
       data::expand_sources(std::vector<std::filesystem::path>(files.begin(), files.end()))) {
    TESSERA_REQUIRE(source.kind == data::Source::Kind::Lines,
                    Data,
                    fmt::format("{} is no .jsonl file", source.path.string()),
                    "give a .jsonl with one object a line, such as {\"text\": \"...\", \"label\": "
                    "\"...\"}");
    const auto file = data::map_source(source.path);
    const std::string_view text = data::without_bom(file->text());
    std::int64_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = text.substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
        ++blank;
      } else {
        fn(Line{line, fmt::format("{}:{}", source.path.string(), number)});
      }
    }
  }
  return blank;
}

json::Value parse_record(const Line& line, const RecordFields& fields, std::int64_t& replaced) {
  std::string clean;
  std::string_view text = line.text;
  if (fields.replace_invalid_utf8 && text::find_invalid_utf8(text)) {
    clean = text::replace_invalid_utf8(text);
    text = clean;
    ++replaced;
  }
  json::Value record;
  try {
    record = json::parse_strict(text, line.place);
  } catch (const Error& error) {
    throw Error(Error::Kind::Data, error.what(), error.fix());
  }
  if (!record.is_object()) {
    refuse(line,
           fmt::format("expected a JSON object, found {}", record.type_name()),
           fmt::format("write {{\"{}\": ..., \"{}\": ...}}", fields.text, fields.label));
  }
  return record;
}

const json::Value& member(const Line& line,
                          const json::Value& record,
                          const std::string& field,
                          const char* option) {
  const json::Value* const found = record.find(field);
  if (found != nullptr) return *found;
  std::vector<std::string> names;
  for (const auto& [name, value] : record.members())
    names.push_back(name);
  refuse(line,
         fmt::format("the record has no \"{}\"", field),
         fmt::format("its fields are {}: set task.params.{} to the one that is meant",
                     names.empty() ? "none" : text::join(names, ", "),
                     option));
}

/// A record's label: a name, or an integer.
struct Label {
  std::string name;
  std::optional<std::int64_t> id;
};

Label label_of(const Line& line, const json::Value& record, const RecordFields& fields) {
  const json::Value& value = member(line, record, fields.label, "label_field");
  if (value.is_string()) return {value.as_string(), std::nullopt};
  const std::optional<std::int64_t> id =
      value.is_number() ? value.as_integer() : std::optional<std::int64_t>();
  if (!id || *id < 0 || *id >= kMostLabels) {
    refuse(line,
           fmt::format("the label \"{}\" is {}", fields.label, value.dump()),
           fmt::format("give a name or an integer from 0 to {}", kMostLabels - 1));
  }
  return {std::to_string(*id), id};
}

std::int64_t id_in(const Line& line, const Label& label, const Labels& labels) {
  if (label.id && *label.id < labels.size()) return *label.id;
  if (!label.id) {
    if (const auto id = labels.id_of(label.name)) return *id;
  }
  refuse(line,
         fmt::format("the label \"{}\" is none of the {} labels", label.name, labels.size()),
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
  for_each_line(files, [&](const Line& line) {
    const Label label = label_of(line, parse_record(line, fields, replaced), fields);
    if (label.id ? !names.empty() : largest >= 0) {
      refuse(line,
             fmt::format("the label is {}, and that of earlier records is {}",
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
    sample.label = id_in(line, label_of(line, record, fields), labels_);
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

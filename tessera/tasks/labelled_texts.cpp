// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/labelled_texts.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/tasks/superglue.h"

namespace tessera::tasks {
namespace {

// Field names in published data (GLUE, SuperGLUE and common tables).
struct PairNames {
  std::string_view first, second;
};
constexpr std::array kPairs = {PairNames{"sentence1", "sentence2"},
                               PairNames{"premise", "hypothesis"},
                               PairNames{"question", "passage"},
                               PairNames{"question", "sentence"},
                               PairNames{"question1", "question2"},
                               PairNames{"#1 String", "#2 String"},
                               PairNames{"text", "text_pair"}};
constexpr std::array<std::string_view, 6> kTexts = {
    "text", "sentence", "review", "content", "utterance", "prompt"};
constexpr std::array<std::string_view, 9> kLabels = {"label",
                                                     "labels",
                                                     "gold_label",
                                                     "is_duplicate",
                                                     "Quality",
                                                     "score",
                                                     "intent",
                                                     "category",
                                                     "class"};

constexpr std::int64_t kNoClass = -100;

std::string names_of(const data::Record& record) {
  std::vector<std::string> names;
  for (const auto& [name, value] : record.value.members())
    names.push_back(name);
  return names.empty() ? "none" : text::join(names, ", ");
}

/// The value of a label's column; nothing if it is neither 0 or 1 nor false or true.
std::optional<bool> flag_in(const data::Record& record, const json::Value& value) {
  if (value.is_bool()) return value.as_bool();
  std::string text;
  if (value.is_string() && record.row) text = text::lower(text::trim(value.as_string()));
  if (text == "true" || text == "false") return text == "true";
  const std::optional<double> number = number_in(record, value);
  return number == 0.0 || number == 1.0 ? std::optional(*number == 1.0) : std::nullopt;
}

/// The columns of 0 and 1 that all records have in common, with the number of ones in each.
class LabelColumns {
 public:
  void add(const data::Record& record, const TextFields& fields) {
    std::map<std::string, std::int64_t> flags;
    for (const auto& [name, value] : record.value.members()) {
      const bool is_text = name == fields.text || name == fields.pair;
      const std::optional<bool> flag = is_text ? std::nullopt : flag_in(record, value);
      if (!flag) continue;
      flags[name] = *flag ? 1 : 0;
      if (first_) columns_.emplace_back(name, 0);
    }
    first_ = false;
    std::erase_if(columns_, [&](const auto& column) { return !flags.contains(column.first); });
    if (columns_.empty()) {
      record.refuse("the record has no \"label\", and no columns of 0 and 1",
                    fmt::format("its fields are {}: set task.params.label_field to the one that is "
                                "meant, or list the columns in task.params.labels",
                                names_of(record)));
    }
    for (auto& [name, count] : columns_)
      count += flags.at(name);
  }
  [[nodiscard]] bool empty() const { return first_; }
  [[nodiscard]] Labels labels() const {
    std::vector<std::string> names;
    std::vector<std::int64_t> counts;
    for (const auto& [name, count] : columns_) {
      names.push_back(name);
      counts.push_back(count);
    }
    Labels out = Labels::named(std::move(names));
    out.counts = std::move(counts);
    return out;
  }

 private:
  bool first_ = true;
  std::vector<std::pair<std::string, std::int64_t>> columns_;
};

/// The labels that a record names.
std::vector<Label> labels_in(const data::Record& record, const std::string& field, LabelKind kind) {
  const json::Value& value = field_of(record, field, "label_field");
  if (kind == LabelKind::Class && value.is_array()) {
    record.refuse(fmt::format("the label \"{}\" is {}", field, value.dump()),
                  "give one label, or set task.params.multi_label to true");
  }
  if (kind == LabelKind::Class) return {label_of(record, value, field)};
  std::vector<Label> out;
  if (value.is_string()) {  // as tables have several: "sad|angry"
    for (const std::string& name : text::split(value.as_string(), '|')) {
      const std::string_view trimmed = text::trim(name);
      if (!trimmed.empty()) out.push_back({.name = std::string(trimmed)});
    }
    return out;
  }
  if (!value.is_array()) {
    record.refuse(fmt::format("the label \"{}\" is {}", field, value.dump()),
                  "give a list of labels or \"a|b\", or leave out task.params.multi_label");
  }
  for (const json::Value& item : value.items())
    out.push_back(label_of(record, item, field));
  return out;
}

/// The records that a record means: fields that are named are read as they are.
std::vector<data::Record> meant_by(const data::Record& record, const TextFields& fields) {
  if (!fields.text.empty() || !fields.pair.empty()) return {record};
  return superglue_records(record);
}

}  // namespace

void TextFields::describe(config::Fields& fields, const char* label_text) {
  fields.field("text_field",
               text,
               {.text = "Field of a record that contains its text.",
                .default_text = "data.text_field, or the one that published data has"});
  fields.field("text_pair_field",
               pair,
               {.text = "Field of a record that contains a second text, which follows the first.",
                .default_text = "none, or the one that published data has"});
  fields.field("label_field",
               label,
               {.text = label_text, .default_text = "label, or the one that published data has"});
  history.describe(fields);
}

TextFields find_fields(const data::Record& record,
                       TextFields fields,
                       const std::string& text,
                       bool labelled) {
  const auto has = [&](std::string_view name) { return record.value.find(name) != nullptr; };
  if (fields.text.empty()) {
    const auto pair = std::ranges::find_if(
        kPairs, [&](const PairNames& p) { return has(p.first) && has(p.second); });
    const auto single = std::ranges::find_if(kTexts, has);
    if (pair != kPairs.end() && fields.pair.empty()) {
      fields.text = pair->first;
      fields.pair = pair->second;
    } else if (has(text)) {
      fields.text = text;
    } else if (single != kTexts.end()) {
      fields.text = *single;
    } else {
      fields.text = text;  // field_of() lists the existing fields
    }
  }
  if (labelled && fields.label.empty()) {
    const auto label = std::ranges::find_if(kLabels, has);
    if (label == kLabels.end() && fields.columns) return fields;
    if (label == kLabels.end()) {
      record.refuse("the record has no \"label\"",
                    fmt::format("its fields are {}: set task.params.label_field to the one that "
                                "is meant",
                                names_of(record)));
    }
    fields.label = *label;
  }
  return fields;
}

Labels labels_found_in(const std::vector<std::string>& files,
                       const data::RecordOptions& how,
                       const TextFields& fields,
                       const std::string& text,
                       LabelKind kind,
                       const std::vector<std::string>& named) {
  LabelCollector found(named);
  LabelColumns columns;
  bool listed = false;
  for_each_record(files, how, [&](const data::Record& written) {
    for (const data::Record& record : meant_by(written, fields)) {
      const TextFields here = find_fields(record, fields, text);
      if (here.label.empty() ? listed : !columns.empty()) {
        record.refuse("its labels are in another form than those of earlier records",
                      "give the labels of all records in one field, or in columns of 0 and 1");
      }
      if (here.label.empty()) {
        columns.add(record, here);
        continue;
      }
      listed = true;
      for (const Label& label : labels_in(record, here.label, kind))
        found.add(record, label);
    }
  });
  return columns.empty() ? found.labels() : columns.labels();
}

LabelledTexts::LabelledTexts(LabelledTextsOptions options) : options_(std::move(options)) {
  TESSERA_ASSERT(options_.length > 0);
}

std::int64_t LabelledTexts::room(const text::Tokenizer& tokenizer, bool pair) const {
  const std::int64_t around =
      pair ? std::ssize(tokenizer.join({}, {}).ids)
           : std::ssize(tokenizer.beginning()) + std::ssize(tokenizer.ending());
  return options_.length - around;
}

bool LabelledTexts::fits(const text::Tokenizer& tokenizer,
                         const std::string& text,
                         const std::string& pair) const {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  if (!pair.empty()) tokenizer.encode(pair, ids);
  return std::ssize(ids) <= room(tokenizer, !pair.empty());
}

void LabelledTexts::tokenize(const text::Tokenizer& tokenizer,
                             const std::string& text,
                             const std::string& pair,
                             Sample& out) {
  std::vector<std::int32_t> first, second;
  tokenizer.encode(text, first);
  if (!pair.empty()) tokenizer.encode(pair, second);
  const std::int64_t room = this->room(tokenizer, !pair.empty());
  TESSERA_REQUIRE(
      room > 0,
      Config,
      fmt::format("texts of {} tokens have no room for one of their own", options_.length),
      "raise data.sequence_length");
  if (std::ssize(first) + std::ssize(second) > room) {
    ++cut_;
    // The longer one is truncated until both fit, as transformers' "longest_first" does.
    std::int64_t longer = std::ssize(first), shorter = std::ssize(second);
    const bool swapped = longer < shorter;
    if (swapped) std::swap(longer, shorter);
    const std::int64_t half = room / 2;
    shorter = std::min(shorter, half);
    longer = room - shorter;
    first.resize(static_cast<std::size_t>(swapped ? shorter : longer));
    second.resize(static_cast<std::size_t>(swapped ? longer : shorter));
  }
  if (!pair.empty()) {
    text::JoinedIds joined = tokenizer.join(first, second);
    out.ids = std::move(joined.ids);
    if (std::ranges::any_of(joined.types, [](std::int32_t type) { return type != 0; }))
      out.types = std::move(joined.types);
    return;
  }
  out.ids = tokenizer.beginning();
  out.ids.insert(out.ids.end(), first.begin(), first.end());
  const std::vector<std::int32_t> ending = tokenizer.ending();
  out.ids.insert(out.ids.end(), ending.begin(), ending.end());
}

void LabelledTexts::read_label(const data::Record& record,
                               const std::string& field,
                               Sample& out) const {
  if (options_.kind == LabelKind::Heads) {
    for (const LabelHead& head : options_.heads) {
      const std::optional<Label> label = label_of_head(record, head);
      out.classes.push_back(label ? id_in(record, *label, head.labels) : kNoClass);
    }
    return;
  }
  const auto labels = static_cast<std::size_t>(options_.labels.size());
  if (options_.kind == LabelKind::Numbers) {
    const json::Value& value = field_of(record, field, "label_field");
    const std::vector<json::Value> one = {value};
    for (const json::Value& item : value.is_array() ? value.items() : one) {
      const std::optional<double> number = number_in(record, item);
      if (!number) record.refuse(fmt::format("\"{}\" is {}", field, value.dump()), "give numbers");
      out.numbers.push_back(static_cast<float>(*number));
    }
    if (out.numbers.size() != labels) {
      record.refuse(fmt::format("\"{}\" has {} numbers", field, out.numbers.size()),
                    fmt::format("give {} in every record, or set task.params.numbers", labels));
    }
    return;
  }
  if (field.empty()) {  // a column for each label
    for (const std::string& name : options_.labels.names()) {
      const json::Value& value = field_of(record, name, "labels");
      const std::optional<bool> flag = flag_in(record, value);
      if (!flag) {
        record.refuse(fmt::format("the column \"{}\" of a label is {}", name, value.dump()),
                      "give 0 or 1");
      }
      out.numbers.push_back(*flag ? 1.0F : 0.0F);
    }
    return;
  }
  const std::vector<Label> found = labels_in(record, field, options_.kind);
  if (options_.kind == LabelKind::Class) {
    out.label = id_in(record, found.front(), options_.labels);
    return;
  }
  out.numbers.assign(labels, 0.0F);
  for (const Label& label : found)
    out.numbers[static_cast<std::size_t>(id_in(record, label, options_.labels))] = 1.0F;
}

void LabelledTexts::read_files(const std::vector<std::string>& files,
                               const data::RecordOptions& how,
                               const TextFields& fields,
                               const std::string& text,
                               const text::Tokenizer& tokenizer,
                               const std::function<void()>& poll) {
  read_records(files, how, poll, [&](const data::Record& written) {
    std::vector<Sample> samples;  // a record that is skipped contributes none
    for (const data::Record& record : meant_by(written, fields))
      samples.push_back(sample_of(record, fields, text, tokenizer));
    for (Sample& sample : samples) {
      pairs_ = pairs_ || !sample.types.empty();
      stats_.tokens += std::ssize(sample.ids);
      samples_.push_back(std::move(sample));
    }
  });
}

LabelledTexts::Sample LabelledTexts::sample_of(const data::Record& record,
                                               const TextFields& fields,
                                               const std::string& text,
                                               const text::Tokenizer& tokenizer) {
  const TextFields here = find_fields(record, fields, text, options_.labelled);
  const std::string second =
      here.pair.empty() ? std::string() : text_of(record, here.pair, "text_pair_field");
  const std::string first =
      with_history(history_of(record, here.history),
                   here.history,
                   text_of(record, here.text, "text_field"),
                   [&](const std::string& longer) { return fits(tokenizer, longer, second); });
  Sample sample;
  if (options_.labelled) read_label(record, here.label, sample);
  tokenize(tokenizer, first, second, sample);
  stats_.bytes += std::ssize(first) + std::ssize(second);
  return sample;
}

LabelsOfSamples LabelledTexts::strata() const {
  TESSERA_ASSERT(!order_);
  LabelsOfSamples out;
  if (options_.kind == LabelKind::Numbers || !options_.labelled) return out;
  for (const Sample& one : samples_) {
    std::vector<std::int64_t>& labels = out.emplace_back();
    if (options_.kind == LabelKind::Class) labels.push_back(one.label);
    for (std::size_t c = 0; c < one.numbers.size(); ++c)
      if (one.numbers[c] > 0) labels.push_back(static_cast<std::int64_t>(c));
    std::int64_t first = 0;
    for (std::size_t h = 0; h < one.classes.size(); ++h) {
      if (one.classes[h] >= 0) labels.push_back(first + one.classes[h]);
      first += options_.heads[h].labels.size();
    }
  }
  return out;
}

void LabelledTexts::reorder(const std::vector<std::int64_t>& order) {
  TESSERA_ASSERT(!order_);
  samples_ = reordered(samples_, order);
}

std::unique_ptr<RecordDataset> LabelledTexts::split_off(std::int64_t count) {
  TESSERA_ASSERT(!order_);
  auto tail = std::make_unique<LabelledTexts>(options_);
  tail->options_.sampling = ClassSampling::None;
  tail->samples_ = take_tail(samples_, count);
  tail->pairs_ = pairs_;
  return tail;
}

void LabelledTexts::arrange() {
  if (options_.sampling == ClassSampling::None) return;
  std::vector<std::int64_t> labels;
  for (const Sample& one : samples_)
    labels.push_back(one.label);
  order_ = balanced_samples(labels, options_.sampling);
}

const LabelledTexts::Sample& LabelledTexts::sample(std::int64_t index) const {
  return samples_.at(
      static_cast<std::size_t>(order_ ? order_->at(static_cast<std::size_t>(index)) : index));
}

std::vector<data::TensorSpec> LabelledTexts::tensors() const {
  const std::int64_t length = options_.length, labels = options_.labels.size();
  std::vector<data::TensorSpec> out = {
      {.name = "input_ids", .dtype = DType::I64, .shape = {length}},
      {.name = "attention_mask", .dtype = DType::I64, .shape = {length}, .optional = true}};
  if (pairs_) out.push_back({.name = "token_type_ids", .dtype = DType::I64, .shape = {length}});
  if (!options_.labelled) return out;
  if (options_.kind == LabelKind::Class) {
    out.push_back({.name = "label", .dtype = DType::I64});
  } else if (options_.kind == LabelKind::Heads) {
    out.push_back({.name = "label", .dtype = DType::I64, .shape = {std::ssize(options_.heads)}});
  } else if (options_.kind == LabelKind::Numbers && labels == 1) {
    out.push_back({.name = "label", .dtype = DType::F32});
  } else {
    out.push_back({.name = "label", .dtype = DType::F32, .shape = {labels}});
  }
  return out;
}

void LabelledTexts::read(std::int64_t index, data::SampleWriter& out) const {
  const Sample& sample = this->sample(index);
  const std::span<std::int64_t> ids = out.tensor<std::int64_t>("input_ids");
  const std::span<std::int64_t> mask = out.tensor<std::int64_t>("attention_mask");
  const auto padding = static_cast<std::ptrdiff_t>(sample.ids.size());
  std::copy(sample.ids.begin(), sample.ids.end(), ids.begin());
  std::fill(ids.begin() + padding, ids.end(), options_.pad_id);
  std::fill(mask.begin(), mask.begin() + padding, 1);
  std::fill(mask.begin() + padding, mask.end(), 0);
  if (padding < std::ssize(mask)) out.need("attention_mask");
  if (pairs_) {
    const std::span<std::int64_t> types = out.tensor<std::int64_t>("token_type_ids");
    std::ranges::fill(types, 0);
    std::ranges::copy(sample.types, types.begin());
  }
  if (!options_.labelled) return;
  if (options_.kind == LabelKind::Class) {
    out.set("label", sample.label);
  } else if (options_.kind == LabelKind::Heads) {
    out.set("label", sample.classes);
  } else {
    out.set("label", sample.numbers);
  }
}

LabelledTexts::ClassCounts LabelledTexts::class_counts() const {
  ClassCounts out;
  if (!options_.labelled || options_.kind == LabelKind::Numbers) return out;
  std::vector<std::size_t> first_of_head;
  for (const LabelHead& head : options_.heads) {
    first_of_head.push_back(out.size());
    for (const std::string& name : head.labels.names())
      out.emplace_back(head.field + "/" + name, 0);
  }
  for (const std::string& name : options_.labels.names())
    out.emplace_back(name, 0);
  for (std::int64_t index = 0; index < size(); ++index) {
    const Sample& one = sample(index);
    if (options_.kind == LabelKind::Class) ++out[static_cast<std::size_t>(one.label)].second;
    for (std::size_t h = 0; h < one.classes.size(); ++h) {
      if (one.classes[h] >= 0)
        ++out[first_of_head[h] + static_cast<std::size_t>(one.classes[h])].second;
    }
    for (std::size_t c = 0; c < one.numbers.size(); ++c)
      out[c].second += one.numbers[c] > 0 ? 1 : 0;
  }
  return out;
}

std::int64_t LabelledTexts::tokens() const {
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < size(); ++i)
    tokens += std::ssize(sample(i).ids);
  return tokens;
}

std::string LabelledTexts::fingerprint() const {
  Fingerprint out;
  out.add(options_.length);
  out.add(static_cast<std::int64_t>(options_.sampling));
  for (const std::string& name : options_.labels.names())
    out.add(name);
  for (const LabelHead& head : options_.heads) {
    out.add(head.field);
    for (const std::string& name : head.labels.names())
      out.add(name);
  }
  for (const Sample& sample : samples_) {
    out.add(sample.ids);
    out.add(sample.types);
    out.add(sample.label);
    for (const std::int64_t label : sample.classes)
      out.add(label);
    out.add(std::string_view(reinterpret_cast<const char*>(sample.numbers.data()),
                             sample.numbers.size() * sizeof(float)));
  }
  return out.text();
}

}  // namespace tessera::tasks

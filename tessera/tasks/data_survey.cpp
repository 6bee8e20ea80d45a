// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/data_survey.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/data/mixture.h"
#include "tessera/data/streamed_tokens.h"
#include "tessera/tasks/answer_ends.h"
#include "tessera/tasks/conversation.h"
#include "tessera/tasks/duplicates.h"
#include "tessera/tasks/labelled_texts.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/superglue.h"
#include "tessera/tasks/tagged_words.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kNothing = -100;
constexpr std::int64_t kPollEvery = 1024;
constexpr std::string_view kPixels = "pixel_values";

const data::TensorSpec* find_tensor(const std::vector<data::TensorSpec>& specs,
                                    std::string_view name) {
  const auto found = std::ranges::find(specs, name, &data::TensorSpec::name);
  return found == specs.end() ? nullptr : &*found;
}

std::vector<std::int64_t> numbers_in(data::Sample& sample, std::string_view name) {
  const auto values = sample.values<std::int64_t>(name);
  return {values.begin(), values.end()};
}

/// The number of positions at which one of the end sequences is completely contained in the labels.
std::int64_t count_ends(const std::vector<std::int64_t>& labels,
                        const std::vector<std::vector<std::int32_t>>& ends) {
  std::int64_t count = 0;
  for (const std::vector<std::int32_t>& end : ends) {
    for (auto at = labels.begin();; ++at) {
      at = std::search(at, labels.end(), end.begin(), end.end());
      if (at == labels.end()) break;
      ++count;
    }
  }
  return count;
}

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  return files::xxh3(bytes);
}

}  // namespace

DataSurveyor::DataSurveyor(const Task& task,
                           const DataRequest& request,
                           const data::Datasets& data,
                           std::vector<std::vector<std::int32_t>> ends)
    : task_(task), request_(request), data_(data), ends_(std::move(ends)) {
  const json::Value options = task.objective_options(request.options);
  if (const json::Value* const count = options.find("num_labels"))
    num_classes_ = count->as_integer().value_or(0);
  if (const json::Value* const names = options.find("labels")) {
    for (const json::Value& name : names->items())
      names_.push_back(name.as_string());
  }
  const json::Value* const type = options.find("problem_type");
  const std::string kind = type != nullptr && type->is_string() ? type->as_string() : "";
  multi_label_ = kind == "multi_label_classification";
  if (kind == "regression") num_classes_ = 0;
  std::int64_t first = 0;
  if (const json::Value* const heads = options.find("heads")) {
    for (const json::Value& head : heads->items()) {
      first_classes_.push_back(first);
      first += std::ssize(head.find("labels")->items());
    }
  }
  if (first_classes_.empty()) first_classes_.push_back(0);
}

std::vector<std::int64_t> DataSurveyor::class_ids(data::Sample& sample) const {
  std::vector<std::int64_t> out;
  const auto labels = sample.values<std::int64_t>("label");
  for (std::size_t h = 0; h < labels.size(); ++h) {
    if (labels[h] >= 0) out.push_back(first_classes_.at(h) + labels[h]);
  }
  return out;
}

std::string DataSurveyor::class_name(std::int64_t id) const {
  return id >= 0 && id < std::ssize(names_) ? names_[static_cast<std::size_t>(id)]
                                            : std::to_string(id);
}

SampleView DataSurveyor::view(std::int64_t index) const {
  data::Sample sample(*data_.train, index);
  const std::vector<data::TensorSpec> specs = data_.train->tensors();
  SampleView out;
  std::vector<std::string_view> told = {"attention_mask", "document_starts", "token_type_ids"};
  if (find_tensor(specs, "input_ids") != nullptr) {
    out.ids = numbers_in(sample, "input_ids");
    told.emplace_back("input_ids");
  }
  const auto length = std::ssize(out.ids);
  std::int64_t read = length;
  if (sample.has("attention_mask")) {
    const auto mask = numbers_in(sample, "attention_mask");
    read = std::ranges::count_if(mask, [](std::int64_t one) { return one != 0; });
  }
  out.padding = length - read;
  const data::TensorSpec* const labels = find_tensor(specs, "labels");
  out.labels.assign(static_cast<std::size_t>(length), kNothing);
  if (labels != nullptr && labels->dtype == DType::I64) {
    told.emplace_back("labels");
    std::vector<std::int64_t> values = numbers_in(sample, "labels");
    if (task_.token_labels() == TokenLabels::OtherText) {
      std::erase(values, kNothing);
      out.target = std::move(values);
    } else if (task_.token_labels() == TokenLabels::NextToken) {
      // The last label belongs to a position after the tokens that are read.
      for (std::int64_t t = 0; t + 1 < length; ++t)
        out.labels[static_cast<std::size_t>(t) + 1] = values[static_cast<std::size_t>(t)];
      if (out.padding == 0 && length > 0 && values.back() != kNothing) {
        out.ids.push_back(values.back());
        out.labels.push_back(values.back());
        ++read;
      }
    } else if (find_tensor(specs, "completion") != nullptr) {
      // Of the two texts of a preference, the completions are learned.
      const auto learned = numbers_in(sample, "completion");
      for (std::int64_t t = 0; t + 1 < length; ++t) {
        if (learned[static_cast<std::size_t>(t)] != 0)
          out.labels[static_cast<std::size_t>(t) + 1] = values[static_cast<std::size_t>(t)];
      }
      told.insert(told.end(), {"completion", "second_text"});
    } else if (std::ssize(values) == length) {
      out.labels = std::move(values);
    }
  }
  out.ids.resize(static_cast<std::size_t>(read));
  out.labels.resize(static_cast<std::size_t>(read));
  if (task_.token_labels() == TokenLabels::Class) {
    for (const std::int64_t label : out.labels)
      out.tags.push_back(label == kNothing ? std::string() : class_name(label));
  }
  out.lengths = {read};
  if (find_tensor(specs, "document_starts") != nullptr) {
    const auto starts = numbers_in(sample, "document_starts");
    out.lengths.clear();
    for (std::int64_t t = 0; t < std::min(read, length); ++t) {
      if (starts[static_cast<std::size_t>(t)] == t) out.lengths.push_back(0);
      if (!out.lengths.empty()) ++out.lengths.back();
    }
  }
  if (const data::TensorSpec* const label = find_tensor(specs, "label")) {
    told.emplace_back("label");
    if (label->dtype == DType::I64) {
      std::vector<std::string> parts;
      for (const std::int64_t id : class_ids(sample))
        parts.push_back(class_name(id));
      out.label = text::join(parts, ", ");
    } else if (label->dtype == DType::F32) {
      std::vector<std::string> parts;
      const auto values = sample.values<float>("label");
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (!multi_label_)
          parts.push_back(text::number(static_cast<double>(values[i])));
        else if (values[i] != 0.0F)
          parts.push_back(class_name(static_cast<std::int64_t>(i)));
      }
      out.label = text::join(parts, ", ");
    }
  }
  for (const data::TensorSpec& spec : specs) {
    if (std::ranges::find(told, spec.name) == told.end()) {
      out.others.push_back(
          fmt::format("{} [{}] {}", spec.name, fmt::join(spec.shape, ", "), name(spec.dtype)));
    }
  }
  return out;
}

void DataSurveyor::count_sample(const SampleView& view, DataSurvey& out) const {
  const auto learned = [](const std::vector<std::int64_t>& labels) {
    return std::ranges::count_if(labels, [](std::int64_t label) { return label != kNothing; });
  };
  out.tokens += std::ssize(view.ids) + std::ssize(view.target);
  out.learned += learned(view.labels) + std::ssize(view.target) + (view.label ? 1 : 0);
  if (out.tells_end)
    out.end_labels += count_ends(view.target.empty() ? view.labels : view.target, ends_);
  if (!view.ids.empty())
    out.lengths.insert(out.lengths.end(), view.lengths.begin(), view.lengths.end());
  if (num_classes_ == 0 || view.label) return;
  for (const std::int64_t label : view.labels) {
    if (label >= 0 && label < std::ssize(out.classes))
      ++out.classes[static_cast<std::size_t>(label)].second;
  }
}

void DataSurveyor::count_records(DataSurvey& out) const {
  data::RecordOptions how = record_options(request_.options, "");
  how.skip_bad = true;  // the task has already checked them
  const bool has_forms = !task_.formats().empty();
  Duplicates seen;
  std::int64_t taken = 0;
  const auto hash = [](const data::Record& record) {
    const std::string text = record.value.dump();
    return hash_of(std::as_bytes(std::span(text)));
  };
  const auto poll = [&] {
    if (request_.how.poll && ++taken % kPollEvery == 0) request_.how.poll();
  };
  data::for_each_record(
      data::record_files(request_.options.train, data::Split::Train),
      how,
      [&](const data::Record& record) {
        poll();
        seen.add(hash(record));
        if (!has_forms) return;
        const std::string& named = request_.options.format;
        ++out.forms[named == "auto" ? std::string(config::name_of(
                                          kForms, form_of(record, request_.options.text_field)))
                                    : named];
      });
  out.duplicates = seen.count();
  out.estimated = !seen.exact();
  if (request_.options.validation.empty()) return;
  data::for_each_record(data::record_files(request_.options.validation, data::Split::Validation),
                        how,
                        [&](const data::Record& record) {
                          poll();
                          out.leaked += seen.weight_of(hash(record));
                        });
}

void DataSurveyor::count_pictures(DataSurvey& out) const {
  const auto for_each = [&](const data::Dataset& dataset, const auto& take) {
    for (std::int64_t i = 0; i < dataset.size(); ++i) {
      if (request_.how.poll && i % kPollEvery == 0) request_.how.poll();
      data::Sample sample(dataset, i);
      take(hash_of(std::as_bytes(sample.values<float>(kPixels))));
    }
  };
  Duplicates seen;
  for_each(*data_.train, [&](std::uint64_t hash) { seen.add(hash); });
  out.duplicates = seen.count();
  out.estimated = !seen.exact();
  if (data_.validation == nullptr) return;
  for_each(*data_.validation, [&](std::uint64_t hash) { out.leaked += seen.weight_of(hash); });
}

void DataSurveyor::count_documents(DataSurvey& out) const {
  std::vector<std::vector<std::string>> sources;
  for (const data::DataSource& source : data::sources_of(request_.options.sources))
    sources.push_back(source.paths);
  if (sources.empty()) sources.push_back(request_.options.train);
  data::TokenizeOptions how = request_.how;
  how.text_field = request_.options.text_field;
  how.invalid_utf8 = request_.options.invalid_utf8;
  Duplicates seen;
  std::vector<std::int64_t> ids;
  for (const std::vector<std::string>& names : sources) {
    const std::vector<std::filesystem::path> paths(names.begin(), names.end());
    const std::shared_ptr<const data::TokenFile> file =
        request_.options.streaming > 0
            ? std::make_shared<const data::StreamedTokens>(
                  paths, request_.tokenizer, how, data::StreamedTokensOptions{})
            : data::tokens_of(paths, request_.tokenizer, how);
    for (std::int64_t i = 0; i < file->sequences(); ++i) {
      if (request_.how.poll && i % kPollEvery == 0) request_.how.poll();
      const std::int64_t length = file->sequence_length(i);
      ids.resize(static_cast<std::size_t>(length));
      file->read(file->sequence_begin(i), length, ids.data());
      seen.add(hash_of(std::as_bytes(std::span(ids))));
      out.lengths.push_back(length);
      if (!request_.options.pack && length > request_.sequence_length) ++out.cut;
    }
    out.records += file->sequences();
    out.tokens += file->tokens();
  }
  out.duplicates = seen.count();
  out.estimated = !seen.exact();
}

DataSurvey DataSurveyor::survey() const {
  DataSurvey out;
  out.samples = data_.train->size();
  out.empty = data_.train_stats.skipped_empty;
  out.bad = data_.train_stats.bad_records;
  for (std::int64_t id = 0; id < num_classes_; ++id)
    out.classes.emplace_back(class_name(id), 0);
  const auto* const records = dynamic_cast<const RecordDataset*>(&data_.train->in_fixed_order());
  if (!task_.reads_records() && records == nullptr) {
    count_documents(out);
    return out;
  }
  out.records = data_.train_stats.documents;
  if (records != nullptr) {
    out.cut = records->cut();
    out.refused = records->refused();
  }
  out.tells_end = task_.token_labels() == TokenLabels::NextToken ||
                  task_.token_labels() == TokenLabels::OtherText;
  for (std::int64_t i = 0; i < out.samples; ++i) {
    if (request_.how.poll && i % kPollEvery == 0) request_.how.poll();
    const SampleView one = view(i);
    count_sample(one, out);
    if (num_classes_ == 0 || !one.label) continue;
    data::Sample sample(*data_.train, i);
    if (!multi_label_) {
      for (const std::int64_t id : class_ids(sample))
        ++out.classes[static_cast<std::size_t>(id)].second;
      continue;
    }
    const auto marks = sample.values<float>("label");
    for (std::size_t c = 0; c < marks.size(); ++c)
      out.classes[c].second += marks[c] != 0.0F ? 1 : 0;
  }
  // Folders of pictures have no records.
  if (find_tensor(data_.train->tensors(), kPixels) != nullptr) {
    count_pictures(out);
  } else if (task_.reads_records()) {
    count_records(out);
  }
  return out;
}

void DataSurveyor::require_learnable(const DataSurvey& survey) const {
  if (!task_.reads_records()) return;
  TESSERA_REQUIRE(survey.learned > 0,
                  Data,
                  fmt::format("none of the {} samples has a label: nothing can be learned",
                              text::with_commas(survey.samples)),
                  "see above which tokens are learned; loss_on and data.map say so");
  if (survey.tells_end && survey.end_labels == 0) {
    throw Error(Error::Kind::Data,
                "the token that ends an answer is learned nowhere: the model would never stop",
                survey.cut > 0
                    ? fmt::format("{} texts are cut: raise data.sequence_length, now {}",
                                  text::with_commas(survey.cut),
                                  request_.sequence_length)
                    : "let the chat template write its end token behind the assistant's turns");
  }
  const auto used =
      std::ranges::count_if(survey.classes, [](const auto& one) { return one.second > 0; });
  if (!multi_label_ && used == 1) {
    const auto only =
        std::ranges::find_if(survey.classes, [](const auto& one) { return one.second > 0; });
    throw Error(Error::Kind::Data,
                fmt::format("every label is \"{}\": there is nothing to tell apart", only->first),
                "use records of several classes");
  }
}

std::vector<std::vector<std::int32_t>> ends_of_answers(const TaskOptions& task,
                                                       const DataRequest& request) {
  const json::Value* const named =
      task.params.is_object() ? task.params.find("chat_template") : nullptr;
  const auto chat =
      open_chat_template(named != nullptr && named->is_string() ? named->as_string() : "",
                         {request.model_folder, request.tokenizer_folder},
                         request.tokenizer);
  const AnswerEnds ends = answer_ends(request.tokenizer, chat ? &*chat : nullptr);
  std::vector<std::vector<std::int32_t>> out;
  for (const std::int32_t id : ends.ids)
    out.push_back({id});
  for (const std::string& text : ends.texts)
    request.tokenizer.encode(text, out.emplace_back());
  return out;
}

TaskOptions task_for(const data::Record& record, const std::string& chat_template) {
  TaskOptions out;
  out.params = json::Value::object();
  const auto has = [&](std::string_view name) { return record.value.find(name) != nullptr; };
  if (has("source") && has("target")) {
    out.type = "seq2seq";
    return out;
  }
  const WordFields words = published_fields(record, {});
  if (has(words.words) && has(words.tags)) {
    out.type = "tag";
    return out;
  }
  const json::Value* const label = record.value.find("label");
  const bool labelled = has("prompt") && has("completion") && label != nullptr && label->is_bool();
  const bool compared = (has("chosen") && has("rejected")) || (has("answer_0") && has("score_0")) ||
                        (has("human_ref_A") && has("human_ref_B"));
  if (compared || labelled) {
    out.type = "prefer";
    if (labelled) out.params["method"] = json::Value::string("kto");
    if (!chat_template.empty()) out.params["chat_template"] = json::Value::string(chat_template);
    return out;
  }
  // The error of a record that no task reads is the one of instructions.
  std::optional<Error> none;
  std::optional<Form> form;
  try {
    form = form_of(record, "text");
  } catch (const Error& error) {
    none = error;
  }
  if (!form || *form == Form::Text) {
    try {
      const std::vector<data::Record> meant = superglue_records(record);
      TESSERA_REQUIRE(!meant.empty(), Data, "no text", "");
      const json::Value& value = meant.front().value;
      const TextFields fields = find_fields(meant.front(), {}, "text");
      TESSERA_REQUIRE(value.find(fields.text) != nullptr, Data, "no text", "");
      const json::Value& label = *value.find(fields.label);
      const bool number =
          label.is_number() &&
          (!label.as_integer() || label.dump().find_first_of(".-") != std::string::npos);
      // A number with a point may be written without one, as 5.000 of STS-B is.
      const bool score = label.is_number() && fields.label == "score";
      out.type = number || score ? "regression" : "classify";
      return out;
    } catch (const Error&) {
      if (none) throw *none;
    }
  }
  out.type = "sft";
  if (!chat_template.empty()) out.params["chat_template"] = json::Value::string(chat_template);
  return out;
}

}  // namespace tessera::tasks

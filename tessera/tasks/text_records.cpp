// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/text_records.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/data/sources.h"

namespace tessera::tasks {
namespace {

void require_samples(const RecordDataset& records, std::int64_t wanted, const std::string& what) {
  TESSERA_REQUIRE(
      records.size() >= wanted,
      Data,
      fmt::format("{} has {} texts; at least {} are needed", what, records.size(), wanted),
      "use more data, or a smaller batch");
}

std::unique_ptr<RecordDataset> read_and_tell(const std::vector<std::string>& names,
                                             const std::string& key,
                                             const ReadRecords& read) {
  std::unique_ptr<RecordDataset> records = read(names);
  if (records->cut() > 0) {
    log::warn_once(
        fmt::format("{}: {} of {} texts are longer than data.sequence_length ({} "
                    "tokens) and lose their end",
                    key,
                    text::with_commas(records->cut()),
                    text::with_commas(records->size()),
                    records->sequence_length().value_or(0)));
  }
  return records;
}

}  // namespace

void RecordLine::refuse(const std::string& what, std::string fix) const {
  throw Error(Error::Kind::Data, fmt::format("{}: {}", place, what), std::move(fix));
}

std::int64_t for_each_record(const std::vector<std::string>& files,
                             const std::string& example,
                             const std::function<void(const RecordLine&)>& fn) {
  std::int64_t blank = 0;
  for (const data::Source& source :
       data::expand_sources(std::vector<std::filesystem::path>(files.begin(), files.end()))) {
    TESSERA_REQUIRE(source.kind == data::Source::Kind::Lines,
                    Data,
                    fmt::format("{} is no .jsonl file", source.path.string()),
                    "give a .jsonl with one object a line, such as " + example);
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
        fn({line, fmt::format("{}:{}", source.path.string(), number)});
      }
    }
  }
  return blank;
}

json::Value record_of(const RecordLine& line,
                      const std::string& example,
                      bool replace_invalid_utf8,
                      std::int64_t& replaced) {
  std::string clean;
  std::string_view text = line.text;
  if (replace_invalid_utf8 && text::find_invalid_utf8(text)) {
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
  if (!record.is_object())
    line.refuse(fmt::format("expected a JSON object, found {}", record.type_name()),
                "write " + example);
  return record;
}

const json::Value& field_of(const RecordLine& line,
                            const json::Value& record,
                            const std::string& field,
                            const char* option) {
  const json::Value* const found = record.find(field);
  if (found != nullptr) return *found;
  std::vector<std::string> names;
  for (const auto& [name, value] : record.members())
    names.push_back(name);
  line.refuse(fmt::format("the record has no \"{}\"", field),
              fmt::format("its fields are {}: set task.params.{} to the one that is meant",
                          names.empty() ? "none" : text::join(names, ", "),
                          option));
}

const std::string& text_of(const RecordLine& line,
                           const json::Value& record,
                           const std::string& field,
                           const char* option) {
  const json::Value& text = field_of(line, record, field, option);
  if (!text.is_string() || text.as_string().empty()) {
    line.refuse(text.is_string() ? fmt::format("\"{}\" is empty", field)
                                 : fmt::format("\"{}\" is {}", field, text.type_name()),
                "give every record a text");
  }
  return text.as_string();
}

data::Datasets open_records(const DataRequest& request, const ReadRecords& read) {
  const data::DataOptions& options = request.options;
  TESSERA_REQUIRE(
      options.validation.empty() || options.validation_fraction == 0.0,
      Config,
      "data.validation and data.validation_fraction are both given",
      "keep data.validation (other data) or data.validation_fraction (the tail of data.train)");
  std::unique_ptr<RecordDataset> train = read_and_tell(options.train, "data.train", read);
  data::Datasets out;
  out.fingerprint = fmt::format(
      "{} {} {}", train->fingerprint(), options.shuffle, text::number(options.validation_fraction));
  out.train_stats = train->stats();
  if (options.validation_fraction > 0.0) {
    const auto kept = static_cast<std::int64_t>(
        std::floor(static_cast<double>(train->size()) * (1.0 - options.validation_fraction)));
    std::unique_ptr<RecordDataset> validation = train->split_off(train->size() - kept);
    require_samples(*validation, 1, "the tail of data.train");
    out.validation_tokens = validation->tokens();
    out.validation = std::move(validation);
  } else if (!options.validation.empty()) {
    std::unique_ptr<RecordDataset> validation =
        read_and_tell(options.validation, "data.validation", read);
    require_samples(*validation, 1, "data.validation");
    out.validation_tokens = validation->tokens();
    out.validation_stats = validation->stats();
    out.validation_fingerprint = validation->fingerprint();
    out.validation = std::move(validation);
  }
  require_samples(*train, std::max<std::int64_t>(request.min_samples, 1), "data.train");
  out.train_tokens = train->tokens();
  out.train = std::move(train);
  return out;
}

data::OpenedDataset open_held_out_records(const std::vector<std::string>& names,
                                          const std::string& key,
                                          const ReadRecords& read) {
  std::unique_ptr<RecordDataset> records = read_and_tell(names, key, read);
  require_samples(*records, 1, key);
  data::OpenedDataset out;
  out.tokens = records->tokens();
  out.stats = records->stats();
  out.fingerprint = records->fingerprint();
  out.dataset = std::move(records);
  return out;
}

}  // namespace tessera::tasks

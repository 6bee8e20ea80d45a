// SPDX-License-Identifier: Apache-2.0
// Samples that are records: one JSON object on each line of .jsonl files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/data/dataset.h"
#include "tessera/data/tokenizer.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// A line of a file.
struct RecordLine {
  std::string_view text;
  std::string place;  ///< "train.jsonl:12"

  /// Throws Error{Data} with the place.
  [[noreturn]] void refuse(const std::string& what, std::string fix) const;
};

/// Calls fn(line) for every line of the files that is not blank; returns the number of blank ones.
/// `example`: a record, for the message about a file that is no .jsonl.
std::int64_t for_each_record(const std::vector<std::string>& files,
                             const std::string& example,
                             const std::function<void(const RecordLine&)>& fn);

/// The object on a line. Error{Data} for another one, with the `example`. `replace_invalid_utf8`:
/// by U+FFFD, counted in `replaced`, in place of an error.
json::Value record_of(const RecordLine& line,
                      const std::string& example,
                      bool replace_invalid_utf8,
                      std::int64_t& replaced);
/// A field of a record. Error{Data} where it is absent; `option` is the key of task.params that
/// names the field.
const json::Value& field_of(const RecordLine& line,
                            const json::Value& record,
                            const std::string& field,
                            const char* option);
/// A field that is a text. Error{Data} for another value and for an empty text.
const std::string& text_of(const RecordLine& line,
                           const json::Value& record,
                           const std::string& field,
                           const char* option);

/// A dataset of records.
class RecordDataset : public data::Dataset {
 public:
  /// Tokens of all samples, without padding.
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  /// The number of texts that were longer than a sample.
  [[nodiscard]] virtual std::int64_t cut() const = 0;
  [[nodiscard]] virtual const data::TokenizeStats& stats() const = 0;
  /// A hash of all that decides the samples.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  /// Moves the last `count` samples into a dataset of their own.
  [[nodiscard]] virtual std::unique_ptr<RecordDataset> split_off(std::int64_t count) = 0;
};

/// Reads the records of files.
using ReadRecords =
    std::function<std::unique_ptr<RecordDataset>(const std::vector<std::string>& files)>;

/// Task::open() of records: data.train and data.validation, or the tail of data.train.
data::Datasets open_records(const DataRequest& request, const ReadRecords& read);
/// Task::open_held_out() of records; messages call the files `key`.
data::OpenedDataset open_held_out_records(const std::vector<std::string>& names,
                                          const std::string& key,
                                          const ReadRecords& read);

}  // namespace tessera::tasks

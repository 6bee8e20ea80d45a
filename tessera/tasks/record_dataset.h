// SPDX-License-Identifier: Apache-2.0
// Samples that are made of records.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/data/dataset.h"
#include "tessera/data/records.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// How records are read as the configuration says. `example`: a record, for messages.
data::RecordOptions record_options(const data::DataOptions& options, std::string example);

/// A field of a record. Error{Data} where it is absent; `option` is the key of task.params that
/// names the field; nullptr: only data.map does.
const json::Value& field_of(const data::Record& record,
                            const std::string& field,
                            const char* option);
/// A field that is a text. Error{Data} for another value and for an empty text.
std::string text_of(const data::Record& record, const std::string& field, const char* option);

/// A dataset of samples that were made of records.
class RecordDataset : public data::Dataset {
 public:
  /// Tokens of all samples, without padding.
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  /// A hash of all that decides the samples.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  /// Moves the last `count` samples into a dataset of their own.
  [[nodiscard]] virtual std::unique_ptr<RecordDataset> split_off(std::int64_t count) = 0;
  /// Called once, after the last split_off(): texts may now be put together into samples.
  virtual void arrange() {}
  /// The number of texts that were longer than a sample.
  [[nodiscard]] std::int64_t cut() const { return cut_; }
  [[nodiscard]] const data::TokenizeStats& stats() const { return stats_; }
  /// What was wrong with the first records that were left out.
  [[nodiscard]] const std::vector<std::string>& refused() const { return refused_; }

 protected:
  /// Calls take(record) for the records of the files, and poll() now and then; counts into stats_.
  void read_records(const std::vector<std::string>& files,
                    const data::RecordOptions& options,
                    const std::function<void()>& poll,
                    const data::TakeRecord& take);

  std::int64_t cut_ = 0;
  data::TokenizeStats stats_;

 private:
  std::vector<std::string> refused_;
};

/// The end of `items` as a vector of its own; for RecordDataset::split_off().
template <class T>
std::vector<T> take_tail(std::vector<T>& items, std::int64_t count) {
  TESSERA_ASSERT(count >= 0 && count <= std::ssize(items));
  std::vector<T> tail(std::make_move_iterator(items.end() - count),
                      std::make_move_iterator(items.end()));
  items.resize(items.size() - static_cast<std::size_t>(count));
  return tail;
}

/// Makes a hash of what decides samples.
class Fingerprint {
 public:
  void add(std::string_view part);
  void add(std::int64_t number);
  void add(const std::vector<std::int32_t>& numbers);
  [[nodiscard]] std::string text() const;

 private:
  std::string bytes_;
};

/// Reads the records that `names` stand for.
using ReadRecords = std::function<std::unique_ptr<RecordDataset>(
    const std::vector<std::string>& names, data::Split split)>;

/// Task::open() of records: data.train and data.validation, or the tail of data.train. `noun`: what
/// samples are, "texts".
data::Datasets open_records(const DataRequest& request,
                            const ReadRecords& read,
                            const char* noun = "texts");
/// Task::open_held_out() of records; messages call the files `key`.
data::OpenedDataset open_held_out_records(const std::vector<std::string>& names,
                                          const std::string& key,
                                          const ReadRecords& read,
                                          const char* noun = "texts");

}  // namespace tessera::tasks

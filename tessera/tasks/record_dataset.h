// SPDX-License-Identifier: Apache-2.0
// Datasets whose samples are made from records.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/data/dataset.h"
#include "tessera/data/records.h"
#include "tessera/tasks/class_sampling.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// The options for reading records in the configuration. `example`: a record, for messages.
data::RecordOptions record_options(const data::DataOptions& options, std::string example);

/// A field of a record. Throws Error{Data} if it is absent; `option` is the key of task.params that
/// names the field; nullptr: only data.map does.
const json::Value& field_of(const data::Record& record,
                            const std::string& field,
                            const char* option);
/// A string field. Throws Error{Data} for any other value and for an empty string.
std::string text_of(const data::Record& record, const std::string& field, const char* option);

/// The finite number, in fp32 too, that a field's value is; in a row of a table also a text that is
/// nothing but such a number.
std::optional<double> number_in(const data::Record& record, const json::Value& value);

/// A dataset whose samples are made from records.
class RecordDataset : public data::Dataset {
 public:
  /// Number of tokens of all samples, without padding.
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  /// A hash of everything that determines the samples.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  /// Moves the last `count` samples into a separate dataset.
  [[nodiscard]] virtual std::unique_ptr<RecordDataset> split_off(std::int64_t count) = 0;
  /// The labels of each sample, of which every part of divided data has its share: classes, and the
  /// tags of words. Empty: the samples have no labels.
  [[nodiscard]] virtual LabelsOfSamples strata() const { return {}; }
  /// Puts the samples into the order of their indices in `order`, a permutation. Called before
  /// arrange(), and only for tasks whose data may be divided by more than its end.
  virtual void reorder(const std::vector<std::int64_t>& order);
  /// Number of samples of each class, in the order of the class ids; empty if there are no classes.
  using ClassCounts = std::vector<std::pair<std::string, std::int64_t>>;
  [[nodiscard]] virtual ClassCounts class_counts() const { return {}; }
  /// Of a sample that is a list, such as words: the number of the row that a model predicts for
  /// each entry, -1 for an entry without one. Empty for other samples.
  [[nodiscard]] virtual std::vector<std::int64_t> places(std::int64_t /*index*/) const {
    return {};
  }
  /// Called once, after the last split_off(); it may combine texts to samples.
  virtual void arrange() {}
  /// The number of texts that were truncated to a sample's length.
  [[nodiscard]] std::int64_t cut() const { return cut_; }
  [[nodiscard]] const data::TokenizeStats& stats() const { return stats_; }
  /// Errors of the first records that were skipped.
  [[nodiscard]] const std::vector<std::string>& refused() const { return refused_; }
  /// The numbers (data::Record::number) of the records that were not skipped, in order. After
  /// reorder() or split_off() they are still those of all records read.
  [[nodiscard]] const std::vector<std::int64_t>& accepted() const { return accepted_; }

 protected:
  /// Calls take(record) for the records of the files, and poll() now and then; updates stats_.
  void read_records(const std::vector<std::string>& files,
                    const data::RecordOptions& options,
                    const std::function<void()>& poll,
                    const data::TakeRecord& take);
  /// Adds the counts of another dataset.
  void count_in(const RecordDataset& other);

  std::int64_t cut_ = 0;
  data::TokenizeStats stats_;

 private:
  std::vector<std::string> refused_;
  std::vector<std::int64_t> accepted_;
};

/// RecordDataset::class_counts() of a dataset; empty if it has no records.
RecordDataset::ClassCounts class_counts_of(const data::Dataset& dataset);

/// The number of the record that each sample of a dataset was made from, in its files; empty if the
/// dataset has no records, or other samples than one for each.
std::vector<std::int64_t> record_numbers(const data::Dataset& dataset);

/// RecordDataset::places() of a sample; empty if the dataset has no records.
std::vector<std::int64_t> places_of(const data::Dataset& dataset, std::int64_t index);

/// Moves the end of `items` into a new vector; for RecordDataset::split_off().
template <class T>
std::vector<T> take_tail(std::vector<T>& items, std::int64_t count) {
  TESSERA_ASSERT(count >= 0 && count <= std::ssize(items));
  std::vector<T> tail(std::make_move_iterator(items.end() - count),
                      std::make_move_iterator(items.end()));
  items.resize(items.size() - static_cast<std::size_t>(count));
  return tail;
}

/// The items in the order of their indices in `order`; for RecordDataset::reorder().
template <class T>
std::vector<T> reordered(std::vector<T>& items, const std::vector<std::int64_t>& order) {
  TESSERA_ASSERT(order.size() == items.size());
  std::vector<T> out;
  out.reserve(items.size());
  for (const std::int64_t index : order)
    out.push_back(std::move(items[static_cast<std::size_t>(index)]));
  return out;
}

/// Computes a hash of everything that determines samples.
class Fingerprint {
 public:
  void add(std::string_view part);
  void add(std::int64_t number);
  void add(const std::vector<std::int32_t>& numbers);
  [[nodiscard]] std::string text() const;

 private:
  std::string bytes_;
};

/// Reads the records for `names`.
using ReadRecords = std::function<std::unique_ptr<RecordDataset>(
    const std::vector<std::string>& names, data::Split split)>;

/// Lists the files of data.train, each of which is read by itself with data.streaming.
using ListFiles = std::function<std::vector<std::string>(const std::vector<std::string>& names)>;
/// The files of records, data::record_files() for training.
std::vector<std::string> training_files(const std::vector<std::string>& names);

/// Task::open() for records: data.train and data.validation, or the tail of data.train. `noun`:
/// what a sample is, such as "texts".
data::Datasets open_records(const DataRequest& request,
                            const ReadRecords& read,
                            const char* noun = "texts",
                            const ListFiles& list = training_files);
/// Task::open_held_out() for records; messages call the files `key`. A folder contributes the files
/// of its test set if the key is data.test, otherwise those of the validation set.
data::OpenedDataset open_held_out_records(const std::vector<std::string>& names,
                                          const std::string& key,
                                          const ReadRecords& read,
                                          const char* noun = "texts");

}  // namespace tessera::tasks

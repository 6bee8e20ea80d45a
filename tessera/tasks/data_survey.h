// SPDX-License-Identifier: Apache-2.0
// Shows what training will see: a task's samples, token by token, and statistics over all of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/records.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// A sample as the model reads it, without its padding.
struct SampleView {
  std::vector<std::int64_t> ids;
  /// For each id the label at its position: the id itself if the previous token predicts it, the
  /// hidden id if it is masked, a class if tokens are classified; -100: none.
  std::vector<std::int64_t> labels;
  std::vector<std::string> tags;      ///< if tokens are classified, the name of each label, or ""
  std::vector<std::int64_t> target;   ///< for an encoder-decoder model: the decoder's sequence
  std::optional<std::string> label;   ///< of the whole sample: class names, or numbers
  std::vector<std::int64_t> lengths;  ///< of the sequences in the sample
  std::int64_t padding = 0;           ///< number of padding positions after the ids
  std::vector<std::string> others;    ///< further tensors: "pixel_values [3, 32, 32] fp32"
};

struct DataSurvey {
  std::int64_t samples = 0, records = 0;  ///< number of accepted records, or of documents
  std::int64_t tokens = 0, learned = 0;   ///< of all samples, including targets
  /// Records that equal an earlier one; of pictures, those with the same pixels.
  std::int64_t duplicates = 0;
  std::int64_t empty = 0, cut = 0, bad = 0;
  /// Validation records that also occur in the training data.
  std::int64_t leaked = 0;
  /// True if these two numbers are estimates, because there are too many records to remember.
  bool estimated = false;
  std::vector<std::string> refused;           ///< errors of the first bad records
  std::map<std::string, std::int64_t> forms;  ///< records by format, if they have one
  std::vector<std::pair<std::string, std::int64_t>> classes;  ///< labels by class
  std::vector<std::int64_t> lengths;                          ///< of all sequences, in tokens
  bool tells_end = false;  ///< the task learns where a text ends, so `end_labels` is counted
  std::int64_t end_labels = 0;
};

/// Reads the training data that a task has opened. Used by one thread.
class DataSurveyor {
 public:
  /// All arguments must outlive this. `ends`: token sequences that end an answer.
  DataSurveyor(const Task& task,
               const DataRequest& request,
               const data::Datasets& data,
               std::vector<std::vector<std::int32_t>> ends);

  [[nodiscard]] SampleView view(std::int64_t index) const;
  /// Reads every sample, and every record once more; for a token stream, every document and no
  /// sample. Calls `request.how.poll` now and then.
  [[nodiscard]] DataSurvey survey() const;
  /// Throws Error{Data} for data from which something cannot be learned: no labels, only one class,
  /// or answers whose end is never a label.
  void require_learnable(const DataSurvey& survey) const;

 private:
  void count_sample(const SampleView& view, DataSurvey& out) const;
  void count_records(DataSurvey& out) const;
  void count_pictures(DataSurvey& out) const;
  void count_documents(DataSurvey& out) const;
  [[nodiscard]] std::string class_name(std::int64_t id) const;
  /// The classes of a sample: one, or one of each head that has a label.
  [[nodiscard]] std::vector<std::int64_t> class_ids(data::Sample& sample) const;

  const Task& task_;
  const DataRequest& request_;
  const data::Datasets& data_;
  std::vector<std::vector<std::int32_t>> ends_;
  std::vector<std::string> names_;           // names of the classes
  std::vector<std::int64_t> first_classes_;  // of each head
  std::int64_t num_classes_ = 0;
  bool multi_label_ = false;
};

/// The token sequences that end an answer: answer_ends() with the chat template that the task's
/// parameters or the folders name.
std::vector<std::vector<std::int32_t>> ends_of_answers(const TaskOptions& task,
                                                       const DataRequest& request);

/// Finds by the fields of a record the task that reads such records, with its parameters; the task
/// itself detects the format of instruction records. Throws Error{Data} if no task does.
/// `chat_template`: for conversations; empty: the model's.
TaskOptions task_for(const data::Record& record, const std::string& chat_template);

}  // namespace tessera::tasks

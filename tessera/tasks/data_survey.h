// SPDX-License-Identifier: Apache-2.0
// What training will see: the samples that a task makes of data, told token by token, and counts
// over all of them.
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
  /// For each id what is learned at its place: the id itself where the token before it predicts it,
  /// the hidden one where it is hidden, a class where tokens are classified; -100: nothing.
  std::vector<std::int64_t> labels;
  std::vector<std::int64_t> target;   ///< of a model that writes another text: that text
  std::optional<std::string> label;   ///< of the whole sample: names of classes, or numbers
  std::vector<std::int64_t> lengths;  ///< of the texts that share the sample
  std::int64_t padding = 0;           ///< places behind the ids that are not read
  std::vector<std::string> others;    ///< further tensors: "pixel_values [3, 32, 32] fp32"
};

struct DataSurvey {
  std::int64_t samples = 0, records = 0;  ///< records: those that were taken, or documents
  std::int64_t tokens = 0, learned = 0;   ///< of all samples, targets among them
  std::int64_t duplicates = 0;            ///< records that equal an earlier one
  std::int64_t empty = 0, cut = 0, bad = 0;
  std::int64_t leaked = 0;                    ///< records of validation that train has too
  std::vector<std::string> refused;           ///< what is wrong with the first bad ones
  std::map<std::string, std::int64_t> forms;  ///< records by their form, where there is one
  std::vector<std::pair<std::string, std::int64_t>> classes;  ///< labels by class
  std::vector<std::int64_t> lengths;                          ///< of all texts, in tokens
  bool tells_end = false;  ///< whether the task learns when a text ends: `end_labels` is counted
  std::int64_t end_labels = 0;
};

/// Reads the training data that a task has opened. Threads: one.
class DataSurveyor {
 public:
  /// All outlive this. `ends`: the tokens of each text that ends an answer.
  DataSurveyor(const Task& task,
               const DataRequest& request,
               const data::Datasets& data,
               std::vector<std::vector<std::int32_t>> ends);

  [[nodiscard]] SampleView view(std::int64_t index) const;
  /// Reads every sample and every record once more; of a stream of tokens, every document and no
  /// sample. `request.how.poll` is called now and then.
  [[nodiscard]] DataSurvey survey() const;
  /// Error{Data} for data of which something can never be learned: no label at all, only one class,
  /// answers whose end is never a label.
  void require_learnable(const DataSurvey& survey) const;

 private:
  void count_sample(const SampleView& view, DataSurvey& out) const;
  void count_records(DataSurvey& out) const;
  void count_documents(DataSurvey& out) const;
  [[nodiscard]] std::string class_name(std::int64_t id) const;

  const Task& task_;
  const DataRequest& request_;
  const data::Datasets& data_;
  std::vector<std::vector<std::int32_t>> ends_;
  std::vector<std::string> names_;  // of classes
  std::int64_t num_classes_ = 0;
  bool multi_label_ = false;
};

/// The texts that end an answer, each in tokens: the tokenizer's end of text, and the end token of
/// the chat template that the task's parameters or the folders name.
std::vector<std::vector<std::int32_t>> ends_of_answers(const TaskOptions& task,
                                                       const DataRequest& request);

/// The task that a record was made for, with its parameters, found by its fields; the form of a
/// record of instructions is left to the task. Error{Data} where no task reads such records.
/// `chat_template`: of conversations; empty: the model's.
TaskOptions task_for(const data::Record& record, const std::string& chat_template);

}  // namespace tessera::tasks

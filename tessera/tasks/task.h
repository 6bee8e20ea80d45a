// SPDX-License-Identifier: Apache-2.0
// A task defines how the records of the data become samples, and which objective a model learns
// from them. To add one, add one file in tasks/ that ends with TESSERA_TASK.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/data/dataset.h"
#include "tessera/data/token_dataset.h"
#include "tessera/tasks/metrics.h"

namespace tessera::tasks {

/// `task` of the configuration.
struct TaskOptions {
  std::string type = "pretrain";
  json::Value params;
  void describe(config::Fields& fields);
};
/// `"task": "classify"` is short for `"task": {"type": "classify"}`; this writes the long form, and
/// for images the preprocessing of model.from into task.params.
void spell_out_task(json::Value& source);

/// The inputs with which a task opens data.
struct DataRequest {
  const data::DataOptions& options;
  const text::Tokenizer& tokenizer;
  std::int64_t vocab_size = 0, sequence_length = 0;
  std::int64_t min_samples = 1;      ///< of the training data
  const data::TokenizeOptions& how;  ///< threads and progress; `options` defines how text is read
  /// The resolved section `model` of the configuration, from which a task gets, for example, the
  /// image size; nullptr if unknown.
  const json::Value* model = nullptr;
  std::filesystem::path model_folder = {};      ///< `model.from`; empty: none
  std::filesystem::path tokenizer_folder = {};  ///< folder of the tokenizer's files; empty: none
  bool predict = false;                         ///< reads only the model's inputs, no labels
  std::uint64_t seed = 0;                       ///< of the order, with data.streaming
  std::int64_t micro_batch = 0;                 ///< samples of one; 0: unknown
};

/// The meaning of a label in the tensor "labels".
enum class TokenLabels : std::uint8_t {
  SameToken,  ///< the token of the position itself
  NextToken,  ///< the token of the next position
  OtherText,  ///< the labels are a text of their own, which answers the tokens
  Class       ///< a class of the position's token
};

/// Const methods can be called from any thread.
class Task {
 public:
  virtual ~Task() = default;
  /// The objective that completes a model of a family: a name of models::objectives().
  [[nodiscard]] virtual std::string objective() const = 0;
  /// Options of the objective that depend on the data, such as the number of labels.
  [[nodiscard]] virtual json::Value objective_options(const data::DataOptions& /*data*/) const {
    return json::Value::object();
  }
  /// The tensors that every sample will have, before the data is opened; empty: not known yet.
  /// Default: token ids with one label each.
  [[nodiscard]] virtual std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const {
    return {{.name = "input_ids", .dtype = DType::I64, .shape = {sequence_length}},
            {.name = "labels", .dtype = DType::I64, .shape = {sequence_length}}};
  }
  /// Returns whether the model generates the data that it learns from during training, so that the
  /// data has no labels.
  [[nodiscard]] virtual bool writes_answers() const { return false; }
  /// How the labels of a sample's tokens belong to its token ids.
  [[nodiscard]] virtual TokenLabels token_labels() const { return TokenLabels::SameToken; }
  /// True if a sample has an answer that a model could write, so that eval.generate applies.
  [[nodiscard]] virtual bool has_answers() const { return false; }
  /// True if a sample may hold several records where data.pack is true.
  [[nodiscard]] virtual bool packs_records() const { return false; }
  /// The kind of experience that makes the data during training: a name of engine::experiences().
  /// Empty: the samples of the dataset are learned.
  [[nodiscard]] virtual std::string experience() const { return {}; }
  /// The number of ranks that a job has in addition to those that train, for the work of
  /// experience().
  [[nodiscard]] virtual int extra_ranks() const { return 0; }
  /// True if the data consists of records, so that data.map and data.on_bad_record apply.
  [[nodiscard]] virtual bool reads_records() const { return false; }
  /// Returns whether data.streaming applies: files become samples while they are used.
  [[nodiscard]] virtual bool streams() const { return false; }
  /// The kinds of records that data.format may name.
  [[nodiscard]] virtual std::vector<std::string> formats() const { return {}; }
  /// True if metrics() uses predictions; evaluation then collects them.
  [[nodiscard]] virtual bool has_metrics() const { return false; }
  /// The metrics that evaluation reports in addition to the loss terms. Pure.
  [[nodiscard]] virtual std::vector<NamedValue> metrics(const Predictions& /*predictions*/) const {
    return {};
  }
  /// Samples for prediction, in the order of the records, without labels. Throws Error{Unsupported}
  /// for a task whose model generates text.
  [[nodiscard]] virtual std::unique_ptr<data::Dataset> open_to_predict(
      const DataRequest& request, const std::vector<std::string>& names) const;
  /// The prediction for one sample as JSON; `names`: label names, empty if these are the ids.
  [[nodiscard]] virtual json::Value prediction(const Predictions& /*rows*/,
                                               const std::vector<std::string>& /*names*/) const {
    return {};
  }
  /// Opens data.train and the validation data. With data.streaming, this and request.tokenizer must
  /// outlive the datasets, and the reader must read in order (Datasets::train shuffles). Throws
  /// Error{Data} if there are fewer samples than request.min_samples, and for a bad record, with
  /// its file and line.
  [[nodiscard]] virtual data::Datasets open(const DataRequest& request) const = 0;
  /// Opens other data in the same way as the validation data; messages call it `key`. Samples may
  /// be shorter than request.sequence_length if the data does not fill a single one.
  [[nodiscard]] virtual data::OpenedDataset open_held_out(const DataRequest& request,
                                                          const std::vector<std::string>& names,
                                                          const std::string& key) const = 0;
};

/// Makes a task from task.params. Problems of the parameters have their places.
using TaskFactory = std::unique_ptr<Task> (*)(const json::Value& params,
                                              config::Problems& problems,
                                              config::Origins& origins);
Registry<TaskFactory>& tasks();
#define TESSERA_TASK(name, factory) \
  static const bool tessera_task_##factory = ::tessera::tasks::tasks().add(name, factory)

/// Tasks whose models have classes with names: a task adopts those of a saved model of its
/// objective. The function adopts from the options of that objective what task.params leave open
/// before data is read; nullptr: nothing.
using AdoptClasses = void (*)(const json::Value& saved, json::Value& params);
Registry<AdoptClasses>& tasks_of_classes();
#define TESSERA_TASK_OF_CLASSES(name, key, adopt)   \
  static const bool tessera_task_of_classes_##key = \
      ::tessera::tasks::tasks_of_classes().add(name, adopt)

/// The tasks for models of an objective, where a command is given no task.
struct ObjectiveTask {
  /// Returns the task that evaluates a trained model with these options of its objective, or that
  /// predicts with it. `labelled`: with the names of the classes, so that labelled records can be
  /// read. nullptr: the task pretrain does.
  TaskOptions (*of_model)(const json::Value& options, bool labelled) = nullptr;
  /// The task that trains a new model of a family with this objective; empty: pretrain.
  std::string trains = {};
  /// Its parameters for an estimate without data, as JSON; empty: it needs none.
  std::string example = {};
};
/// By the names of models::objectives().
Registry<ObjectiveTask>& tasks_of_objectives();
#define TESSERA_TASK_OF_OBJECTIVE(objective, key, ...) \
  static const bool tessera_task_of_objective_##key =  \
      ::tessera::tasks::tasks_of_objectives().add(objective, __VA_ARGS__)
/// Returns the entry of an objective; one without values if it has none.
ObjectiveTask task_of_objective(const std::string& objective);

/// Makes the task that the options name; problems of its parameters are added to `problems` under
/// task.params. Throws Error{Config} with the nearest name for an unknown type.
std::unique_ptr<Task> make_task(const TaskOptions& options, config::Problems& problems);
/// Adds a problem for each key of `data` that the task does not use.
void check_data(const Task& task,
                const TaskOptions& options,
                const data::DataOptions& data,
                config::Problems& problems,
                const config::Origins& origins);

}  // namespace tessera::tasks

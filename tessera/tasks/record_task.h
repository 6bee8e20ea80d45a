// SPDX-License-Identifier: Apache-2.0
// The common base of tasks that read records: how they open data.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// Task::open() of a task that reads records: data.streaming keeps a copy of `request`, with which
/// reader() is called, as long as the datasets live. See open_records() for the rest.
data::Datasets open_task_records(const DataRequest& request,
                                 const std::function<ReadRecords(const DataRequest&)>& reader,
                                 const char* noun = "texts",
                                 const ListFiles& list = training_files);

/// A task that learns from records. Derived classes define how records become samples.
class RecordTask : public Task {
 public:
  [[nodiscard]] bool reads_records() const final { return true; }
  [[nodiscard]] data::Datasets open(const DataRequest& request) const final;
  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const final;
  /// For tasks with metrics: reader() without labels. `request.predict` is true.
  [[nodiscard]] std::unique_ptr<data::Dataset> open_to_predict(
      const DataRequest& request, const std::vector<std::string>& names) const final;

 protected:
  /// Returns the function that makes samples from records; it is called while `request` lives.
  [[nodiscard]] virtual ReadRecords reader(const DataRequest& request) const = 0;
  /// The name of a sample in messages.
  [[nodiscard]] virtual const char* noun() const { return "texts"; }
};

}  // namespace tessera::tasks

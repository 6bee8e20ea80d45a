// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/record_task.h"

namespace tessera::tasks {

data::Datasets RecordTask::open(const DataRequest& request) const {
  return open_records(request, reader(request), noun());
}

data::OpenedDataset RecordTask::open_held_out(const DataRequest& request,
                                              const std::vector<std::string>& names,
                                              const std::string& key) const {
  return open_held_out_records(names, key, reader(request), noun());
}

std::unique_ptr<data::Dataset> RecordTask::open_to_predict(
    const DataRequest& request, const std::vector<std::string>& names) const {
  if (!has_metrics()) return Task::open_to_predict(request, names);  // throws
  return reader(request)(names, data::Split::Test);
}

}  // namespace tessera::tasks

// SPDX-License-Identifier: Apache-2.0
// The data of a plan: the task that makes samples of it, the tokenizer, and the samples' tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/token_dataset.h"
#include "tessera/tasks/task.h"
#include "tessera/text/tokenizer.h"

namespace tessera::planner {

struct DataPlan {
  tasks::TaskOptions task_options;
  std::shared_ptr<const tasks::Task> task;  ///< how data becomes samples
  text::TokenizerOptions tokenizer_options;
  text::TokenizerPtr tokenizer;
  data::DataOptions options;  ///< the section `data`
  std::int64_t sequence_length = 0;
  /// The tensors of every sample: by the task, and once the data is open, by the data.
  std::vector<data::TensorSpec> sample;
};

}  // namespace tessera::planner

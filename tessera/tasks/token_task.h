// SPDX-License-Identifier: Apache-2.0
// Data of tasks whose samples are made from sequences of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/token_dataset.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// Task::open() for sequences of `length` tokens: see data::open_datasets().
inline data::Datasets open_tokens(const DataRequest& request,
                                  std::int64_t length,
                                  const data::TokenSamples& samples) {
  return data::open_datasets(request.options,
                             request.tokenizer,
                             request.vocab_size,
                             length,
                             request.min_samples,
                             request.how,
                             samples);
}

/// Task::open_held_out() for sequences of `length` tokens: see data::open_dataset(). If all tokens
/// together are fewer, the one sample is shorter.
inline data::OpenedDataset open_held_out_tokens(const DataRequest& request,
                                                const std::vector<std::string>& names,
                                                const std::string& key,
                                                std::int64_t length,
                                                const data::TokenSamples& samples = {}) {
  return data::open_dataset(request.options,
                            names,
                            key,
                            request.tokenizer,
                            request.vocab_size,
                            length,
                            request.how,
                            /*shorter=*/true,
                            samples);
}

}  // namespace tessera::tasks

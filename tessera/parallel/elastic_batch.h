// SPDX-License-Identifier: Apache-2.0
// The section `elasticity`: DeepSpeed's choice of a global batch that many numbers of ranks can
// share, so that a training goes on with the same batch on other ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::parallel {

struct ElasticityOptions {
  bool enabled = false;
  std::int64_t max_train_batch_size = 2000;
  json::Value micro_batch_sizes;  ///< list of integers; null: [2, 4, 6]
  std::int64_t min_gpus = 1, max_gpus = 10000;
  std::int64_t min_time = 0;  ///< minutes between two changes of the hosts, of which none was lost
  bool prefer_larger_batch = true;
  double version = 0.2;
  bool ignore_non_elastic_batch_info = false;
  std::int64_t num_gpus_per_node = 1, model_parallel_size = 1;
  void describe(config::Fields& fields);
};

/// A batch in sequences, and how a number of ranks computes it.
struct ElasticBatch {
  std::int64_t global = 0, micro = 0;
  std::vector<std::int64_t>
      data_ranks;  ///< numbers of data-parallel ranks that share it, ascending
};

/// Returns the batch for `ranks` ranks, of which `data_ranks` are data-parallel. Reports invalid
/// values, and a number of ranks that cannot share the batch together with the numbers that can;
/// then returns nothing. Source: DeepSpeed's elasticity, versions 0.1 (counts ranks) and 0.2
/// (counts nodes; ranks that do not fit get a batch of their own). Cost: the square root of
/// max_train_batch_size for each micro-batch size.
std::optional<ElasticBatch> elastic_batch(const ElasticityOptions& options,
                                          std::int64_t ranks,
                                          std::int64_t data_ranks,
                                          config::Problems& problems,
                                          const config::Origins& origins);

}  // namespace tessera::parallel

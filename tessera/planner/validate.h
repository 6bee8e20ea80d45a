// SPDX-License-Identifier: Apache-2.0
// Rules between keys. Pure: what breaks a rule goes to `problems` with the place of the key to
// change.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// global = micro x accumulation x ranks, in sequences.
struct BatchSizes {
  std::int64_t global = 0, micro = 0, accumulation = 0;
};
/// The one of the keys of the batch that a message should point at.
const char* given_batch_key(const TrainConfig& config);
/// Whether the configuration says how large a batch is; a problem where it does not.
bool says_batch(const TrainConfig& config,
                config::Problems& problems,
                const config::Origins& origins);
/// Completes the three keys of the batch for `ranks` data-parallel ranks and checks that the
/// equation closes; where it does not, it is printed with its numbers and nothing is returned.
/// Source: DeepSpeed's batch configuration.
std::optional<BatchSizes> solve_batch(const TrainConfig& config,
                                      int ranks,
                                      config::Problems& problems,
                                      const config::Origins& origins);

/// Rules between keys as they are written (in new names), before those without a meaning here are
/// taken out: what DeepSpeed itself refuses together.
void check_written(const json::Value& source, config::Problems& problems);

/// Rules that need nothing but the configuration.
void check_config(const TrainConfig& config,
                  int ranks,
                  config::Problems& problems,
                  const config::Origins& origins);

/// Rules of the section `parallel`.
void check_layout(const TrainConfig& config,
                  config::Problems& problems,
                  const config::Origins& origins);

/// Whether a size of the model, by its key, is what the user meant: given, or of a preset that
/// exists.
bool knows_size(const models::ModelOptions& options,
                std::string_view key,
                const config::Problems& problems);

/// How layers are cut by that mode.
nn::TensorMode tensor_mode(const TensorOptions& tensor);

/// How many of `size` ranks of mode 1d have the same head of keys and values, because they are more
/// than there are and a multiple of these: 1 where heads are enough or do not divide, where some
/// would have no query, and where layers differ.
std::int64_t ranks_that_share_a_head(const nn::Model& model, std::int64_t size);

/// What tensor parallelism needs of the model, the micro-batch, the sequence length and the
/// optimizer. `own_model`: the program's, which the section `model` says nothing of.
void check_tensor_parallel(const Plan& plan,
                           bool own_model,
                           config::Problems& problems,
                           const config::Origins& origins);

/// What context parallelism needs of the model, the sequence length and the optimizer.
void check_context_parallel(const Plan& plan,
                            bool own_model,
                            config::Problems& problems,
                            const config::Origins& origins);

/// What the user should be told of keys that have no effect beside others.
std::vector<std::string> config_notes(const TrainConfig& config, const config::Origins& origins);

/// Sizes of buckets and limits, given by the user, that are below the largest parameter of the
/// model: what happens then, with both numbers. Of a plan whose layout is known.
std::vector<std::string> bucket_notes(const Plan& plan, const config::Origins& origins);

/// Rules between the configuration and the model that it resolved to.
void check_model(const TrainConfig& config,
                 const models::Resolved& model,
                 config::Problems& problems,
                 const config::Origins& origins);

}  // namespace tessera::planner

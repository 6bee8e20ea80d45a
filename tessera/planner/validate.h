// SPDX-License-Identifier: Apache-2.0
// Checks rules between keys. Pure: violations are added to `problems` with the place of the key to
// change.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/parameter_rules.h"
#include "tessera/planner/train_config.h"

namespace tessera::parallel {
struct Layout;
struct OffloadChoice;
}  // namespace tessera::parallel

namespace tessera::planner {

struct DataPlan;

/// global = micro x accumulation x ranks, in sequences.
struct BatchSizes {
  std::int64_t global = 0, micro = 0, accumulation = 0;
};
/// The batch size key to which a message should refer.
const char* given_batch_key(const TrainConfig& config);
/// True if the configuration defines a batch size; else reports a problem.
bool says_batch(const TrainConfig& config,
                config::Problems& problems,
                const config::Origins& origins);
/// Completes the three batch size keys for `ranks` data-parallel ranks and checks the equation; if
/// it does not hold, reports it with its numbers and returns nothing. Source: DeepSpeed's batch
/// configuration.
std::optional<BatchSizes> solve_batch(const TrainConfig& config,
                                      int ranks,
                                      config::Problems& problems,
                                      const config::Origins& origins);

/// Rules between keys as written (with current names), before keys without an effect are removed:
/// the combinations that DeepSpeed itself refuses.
void check_written(const json::Value& source, config::Problems& problems);
/// Removes optimizer.params.max_grad_norm: no optimizer has this key, and check_written() has
/// reported where it belongs.
void drop_max_grad_norm(json::Value& source);

/// Rules between the block hybrid_engine as written, and the task and the sequence length, which
/// generation uses.
void check_hybrid_engine(const json::Value& source,
                         const DataPlan& data,
                         config::Problems& problems);

/// The keys on which offload depends, which refer to `config`.
parallel::OffloadChoice offload_choice(const TrainConfig& config);
/// Rules that depend only on the configuration.
void check_config(const TrainConfig& config,
                  int ranks,
                  config::Problems& problems,
                  const config::Origins& origins);

/// True if a size of the model, by its key, is what the user meant: given, or from an existing
/// preset.
bool knows_size(const models::ModelOptions& options,
                std::string_view key,
                const config::Problems& problems);

/// A model whose layout is checked, and the sizes of its samples.
struct CheckedModel {
  const models::Resolved& model;
  bool own = false;  ///< it is the program's, and the section `model` does not describe it
  std::int64_t sequence_length = 0;
  std::int64_t micro_batch = 0;  ///< 0: unknown
};
/// Checks what tensor parallelism requires of the model, the micro-batch, the sequence length and
/// the optimizer.
void check_tensor_parallel(const TrainConfig& config,
                           const CheckedModel& checked,
                           config::Problems& problems,
                           const config::Origins& origins);

/// Checks what context parallelism requires of the model, the sequence length and the optimizer.
void check_context_parallel(const TrainConfig& config,
                            const CheckedModel& checked,
                            config::Problems& problems,
                            const config::Origins& origins);

/// Divides the experts of the model (parallel::divide_experts()).
void divide_experts(const TrainConfig& config,
                    const CheckedModel& checked,
                    parallel::Layout& layout,
                    config::Problems& problems,
                    const config::Origins& origins);

/// The tiles of the weights (parallel::tiles_by()). `gathers`: data-parallel ranks gather weights
/// for each other.
parallel::TileCount divide_weights(const TrainConfig& config,
                                   const models::Resolved& model,
                                   const parallel::ParameterRules& rules,
                                   bool gathers,
                                   std::vector<std::string>& notes,
                                   config::Problems& problems,
                                   const config::Origins& origins);

/// Notes for the user about keys that have no effect in combination with others.
std::vector<std::string> config_notes(const TrainConfig& config, const config::Origins& origins);

/// Rules between the configuration and the resolved model.
void check_model(const TrainConfig& config,
                 const models::Resolved& model,
                 config::Problems& problems,
                 const config::Origins& origins);

}  // namespace tessera::planner

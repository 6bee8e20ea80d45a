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
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/parallel/options.h"
#include "tessera/planner/train_config.h"

namespace tessera::parallel {
struct Layout;
struct ActivationOffload;
struct StateOffload;
struct WeightOffload;
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

/// Returns the disk on which masters and states rest, if any; makes the path of the folder
/// absolute, so that it is found from any folder.
std::optional<parallel::StateOffload> complete_offload(parallel::ZeroOptions& options);
/// The same for the working weights.
std::optional<parallel::WeightOffload> complete_weight_offload(parallel::ZeroOptions& options);
/// The same for the inputs of recomputed blocks.
std::optional<parallel::ActivationOffload> complete_activation_offload(
    parallel::RecomputeOptions& options);
/// The rules about what rests on a disk.
void check_offload(const TrainConfig& config,
                   config::Problems& problems,
                   const config::Origins& origins);
/// Refuses offload from a device; `on` says that and where it is not built.
void check_offload_on_device(const TrainConfig& config,
                             const std::string& on,
                             config::Problems& problems,
                             const config::Origins& origins);
/// Notes about keys of offload that have no effect.
std::vector<std::string> offload_notes(const TrainConfig& config);

/// Completes the keys of error feedback and returns it; nothing if none of them is given.
std::optional<parallel::FeedbackOptions> complete_feedback(parallel::ZeroOptions& options);

/// Rules between keys as written (with current names), before keys without an effect are removed:
/// the combinations that DeepSpeed itself refuses.
void check_written(const json::Value& source, config::Problems& problems);

/// Rules between the block hybrid_engine as written, and the task and the sequence length, which
/// generation uses.
void check_hybrid_engine(const json::Value& source,
                         const DataPlan& data,
                         config::Problems& problems);

/// Rules that depend only on the configuration.
void check_config(const TrainConfig& config,
                  int ranks,
                  config::Problems& problems,
                  const config::Origins& origins);

/// Rules of the section `parallel`.
void check_layout(const TrainConfig& config,
                  config::Problems& problems,
                  const config::Origins& origins);

/// Checks the pipeline against the rest of the configuration: micro-batches and optimizer.
/// `accumulation`: 0 if it is unknown.
void check_pipeline(const TrainConfig& config,
                    std::int64_t accumulation,
                    config::Problems& problems,
                    const config::Origins& origins);

/// True if a size of the model, by its key, is what the user meant: given, or from an existing
/// preset.
bool knows_size(const models::ModelOptions& options,
                std::string_view key,
                const config::Problems& problems);

/// Number of ranks, of `size` ranks in mode 1d, that have the same head of keys and values because
/// there are more ranks than such heads: 1 if there are enough heads, if they do not divide the
/// ranks, if some ranks would have no query, or if layers differ.
std::int64_t ranks_that_share_a_head(const nn::Model& model, std::int64_t size);
/// The grid of `size` ranks in a row that share every layer of a model (mode 1d).
parallel::TensorOptions::Grid ranks_in_a_row(const nn::Model& model, std::int64_t size);

/// Reports layers of a program's own model that the ranks of `tensor` (mode 1d) cannot share.
void check_shared_layers(const parallel::TensorOptions& tensor,
                         const nn::Model& model,
                         config::Problems& problems);
/// Reports an optimizer that needs whole gradients, of which ranks that share layers have parts.
void check_shared_gradients(const optim::OptimizerOptions& optimizer,
                            config::Problems& problems,
                            const config::Origins& origins);
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

/// Sets the number of ranks among which experts are divided (parallel.expert), and checks what the
/// layout requires of the experts of the model, and of the optimizer.
void divide_experts(const TrainConfig& config,
                    const CheckedModel& checked,
                    parallel::Layout& layout,
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

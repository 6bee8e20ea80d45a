// SPDX-License-Identifier: Apache-2.0
// Values of a plan that sources all over the program read. A source that reads only these includes
// no part of a plan, and does not depend on the keys of the parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/base/dtype.h"

namespace tessera::data {
struct DataOptions;
}
namespace tessera::models {
struct Resolved;
}
namespace tessera::tasks {
struct EvalOptions;
class Task;
}  // namespace tessera::tasks
namespace tessera::text {
class Tokenizer;
}

namespace tessera::planner {

class Plan;

/// DataPlan: the task, which is empty for a program's own model and data, the tokenizer, the
/// section `data`, and the tokens of a sample.
const std::shared_ptr<const tasks::Task>& task_of(const Plan& plan);
const std::shared_ptr<const text::Tokenizer>& tokenizer_of(const Plan& plan);
const data::DataOptions& data_options_of(const Plan& plan);
std::int64_t sequence_length_of(const Plan& plan);
/// ModelPlan::resolved.
const models::Resolved& model_of(const Plan& plan);
/// Recipe: the samples of a step of all ranks, and the seed.
std::int64_t global_batch_of(const Plan& plan);
std::int64_t seed_of(const Plan& plan);
/// The section `eval`.
const tasks::EvalOptions& eval_options_of(const Plan& plan);
/// parallel::Layout: the samples of a pass of a rank and its passes in a step, the threads of a
/// rank, the number of ranks with different samples, the ZeRO stage, the stages and the schedule of
/// the pipeline, and the dtype of weights and activations.
std::int64_t micro_batch_of(const Plan& plan);
std::int64_t accumulation_of(const Plan& plan);
int threads_of(const Plan& plan);
int data_ranks_of(const Plan& plan);
int zero_stage_of(const Plan& plan);
int stages_of(const Plan& plan);
const std::string& schedule_of(const Plan& plan);
DType working_of(const Plan& plan);
/// parallel::Layout::runs_together().
bool runs_together(const Plan& plan);
/// The number of ranks that share the tokens of every sample.
int context_ranks_of(const Plan& plan);
/// The key `run.device`.
const std::string& run_device_of(const Plan& plan);

}  // namespace tessera::planner

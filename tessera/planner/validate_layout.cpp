// SPDX-License-Identifier: Apache-2.0
// Rules of the section `parallel`: the requirements of sharing layers and tokens.
#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/nn/block.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/parallel/context_rules.h"
#include "tessera/parallel/expert_rules.h"
#include "tessera/parallel/tensor_mode.h"
#include "tessera/parallel/tensor_rules.h"
#include "tessera/parallel/tile_rules.h"
#include "tessera/planner/validate.h"

namespace tessera::planner {
namespace {

// Every rank of a grid must have samples and an equal part of the channels.
void check_micro_batch(const TrainConfig& config,
                       const CheckedModel& checked,
                       config::Problems& problems,
                       const config::Origins& origins) {
  const parallel::TensorOptions& tensor = config.parallel.tensor;
  const parallel::TensorOptions::Grid grid = tensor.grid();
  const std::int64_t samples = grid.size() / grid.row;
  // If the batch could not be solved, uses the given value.
  const std::int64_t micro = checked.micro_batch > 0
                                 ? checked.micro_batch
                                 : config.train_micro_batch_size_per_gpu.value_or(samples);
  if (micro < samples) {
    const std::string key = given_batch_key(config);
    problems.add(
        origins.place(key),
        key,
        fmt::format("a micro-batch of {} sequences cannot be shared by {} ranks (parallel.tensor, "
                    "mode {}): each needs at least one",
                    micro,
                    samples,
                    tensor.name()),
        fmt::format("set train_micro_batch_size_per_gpu to {}, or parallel.tensor.mode to \"1d\"",
                    samples));
  }
  const std::int64_t C = checked.model.hidden_size;
  if (C % grid.row == 0 || !knows_size(config.model, "hidden_size", problems)) return;
  // It must also be divisible by the heads.
  const std::int64_t unit = std::lcm(grid.row, std::max<std::int64_t>(checked.model.num_heads, 1));
  const std::int64_t below = C / unit * unit;
  problems.add(
      origins.place("model.hidden_size"),
      "model.hidden_size",
      fmt::format("{} channels cannot be cut into {} equal parts (parallel.tensor, mode {})",
                  C,
                  grid.row,
                  tensor.name()),
      below > 0 ? fmt::format("set it to {} or {}", below, below + unit)
                : fmt::format("set it to {}", below + unit));
}

}  // namespace

bool knows_size(const models::ModelOptions& options,
                std::string_view key,
                const config::Problems& problems) {
  if (options.has(key)) return true;
  // Other sizes follow from the preset and from the hidden size.
  return !problems.concern(fmt::format("model.{}", key)) && !problems.concern("model.preset") &&
         !problems.concern("model.hidden_size");
}

namespace {

// True if the number of tokens of a sample is known: given, or the model's number of positions.
bool knows_length(const TrainConfig& config, const config::Problems& problems) {
  return config.data.sequence_length || (!problems.concern("data.sequence_length") &&
                                         knows_size(config.model, "max_positions", problems));
}

// True if the model pads samples to a number of tokens that ranks can share. The tokens of an image
// are its patches, and data.sequence_length does not change their number.
bool pads_samples(const models::Resolved& model) {
  return model.trunk.output.modality == models::Modality::Images;
}

}  // namespace

void check_tensor_parallel(const TrainConfig& config,
                           const CheckedModel& checked,
                           config::Problems& problems,
                           const config::Origins& origins) {
  const parallel::ParallelOptions& parallel = config.parallel;
  const parallel::TensorOptions& tensor = parallel.tensor;
  if (tensor.size <= 1) return;
  const auto add = [&](const char* path, std::string what, std::string fix) {
    problems.add(origins.place(path), path, std::move(what), std::move(fix));
  };
  const bool on_grid = parallel::mode_of(tensor.layout()) != nn::TensorMode::OneD;
  const bool modelled = !checked.model.model.blocks.empty();
  const bool known = parallel::knows_cut(tensor, problems);
  if (on_grid && checked.own) {
    add("parallel.tensor.mode",
        fmt::format("mode {} cuts samples and channels between layers, and the program's "
                    "own model may need all of them",
                    tensor.name()),
        "set it to \"1d\"");
  } else if (std::string obstacle;
             const auto* const block =
                 on_grid ? parallel::block_off_grid(checked.model.model, obstacle) : nullptr) {
    add("parallel.tensor.mode",
        fmt::format("mode {} does not cut {}, of block {}", tensor.name(), obstacle, block->name),
        "set it to \"1d\"");
  } else if (known && modelled) {
    const auto knows = [&](const char* key) {
      return checked.own || knows_size(config.model, key, problems);
    };
    parallel::check_cuts(tensor, checked.model.model, knows, problems, origins);
    if (on_grid) check_micro_batch(config, checked, problems, origins);
  }
  if (parallel.sequence && on_grid) {
    add("parallel.sequence",
        fmt::format("mode {} cuts samples and channels between layers, not tokens", tensor.name()),
        "set it to false, or parallel.tensor.mode to \"1d\"");
  } else if (const auto* const block = parallel::block_of_all_tokens(checked.model.model);
             parallel.sequence && block != nullptr) {
    add("parallel.sequence",
        parallel::needs_all_tokens(*block),
        std::string("set it to false") + parallel::kSayByToken);
  } else if (parallel.sequence && known && modelled && !pads_samples(checked.model) &&
             knows_length(config, problems) &&
             // check_context_parallel() reports both.
             parallel.context.size <= 1 && checked.sequence_length % tensor.size != 0) {
    add("data.sequence_length",
        fmt::format("{} tokens cannot be shared evenly by {} ranks (parallel.sequence)",
                    checked.sequence_length,
                    tensor.size),
        fmt::format("set it to {}, or parallel.sequence to false",
                    std::max(tensor.size, checked.sequence_length / tensor.size * tensor.size)));
  }
  parallel::check_shared_gradients(config.optimizer, problems, origins);
}

void check_context_parallel(const TrainConfig& config,
                            const CheckedModel& checked,
                            config::Problems& problems,
                            const config::Origins& origins) {
  std::set<std::int64_t> heads;
  if (checked.own) {
    heads = parallel::heads_of(checked.model.model);
  } else if (knows_size(config.model, "num_heads", problems)) {
    heads = {checked.model.num_heads};
  }
  const bool shared = !pads_samples(checked.model) && knows_length(config, problems);
  parallel::check_context({.parallel = config.parallel,
                           .optimizer = config.optimizer,
                           .sequence_length = shared ? checked.sequence_length : 0,
                           .heads = std::move(heads),
                           .own = checked.own},
                          checked.model.model,
                          problems,
                          origins);
}

void divide_experts(const TrainConfig& config,
                    const CheckedModel& checked,
                    parallel::Layout& layout,
                    config::Problems& problems,
                    const config::Origins& origins) {
  parallel::divide_experts({config.parallel,
                            config.zero_optimization,
                            config.optimizer,
                            checked.model.description,
                            checked.micro_batch * checked.sequence_length},
                           checked.model.model,
                           layout,
                           problems,
                           origins);
}

parallel::TileCount divide_weights(const TrainConfig& config,
                                   const models::Resolved& model,
                                   const parallel::ParameterRules& rules,
                                   bool gathers,
                                   std::vector<std::string>& notes,
                                   config::Problems& problems,
                                   const config::Origins& origins) {
  return parallel::tiles_by({.tiling = config.tiling,
                             .optimizer = config.optimizer,
                             .parallel = config.parallel,
                             .sparse_gradients = config.sparse_gradients,
                             .gathers = gathers},
                            nn::parameters_of(model.model),
                            rules,
                            notes,
                            problems,
                            origins);
}

}  // namespace tessera::planner

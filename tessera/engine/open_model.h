// SPDX-License-Identifier: Apache-2.0
// A trained model for reading: a run, a checkpoint or a Hugging Face folder, on this process alone
// or sharded over ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/comm/world.h"
#include "tessera/config/json.h"
#include "tessera/data/tokenizer.h"
#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::engine {

/// What the weights of a model that is read are kept in. BF16: activations and the KV cache are
/// bf16 too. Int8: matrices in eight bits with a scale for each row, around them bf16; on one rank,
/// and to make text with.
enum class ReadAs : std::uint8_t { F32, BF16, Int8 };
/// "fp32", "bf16" or "int8"; Error{Config} for another word.
ReadAs read_as_from_name(std::string_view name);
std::string_view name(ReadAs as);

/// Threads: one.
struct OpenModel {
  models::Resolved shape;
  data::TokenizerPtr tokenizer;
  std::optional<json::Value> config;  ///< of the run it came from, without model.from
  int trained_on = 1;                 ///< ranks of that run
  std::filesystem::path source;       ///< the checkpoint or folder that was read
  std::filesystem::path beside;       ///< folder of the tokenizer's files, if `source` is none
  models::WeightSource weights;       ///< of an imported one; else empty
  // From here on by load_model().
  std::unique_ptr<comm::World> alone;  ///< of a process alone
  comm::World* world = nullptr;
  std::unique_ptr<parallel::ModelInstance> model;
  std::unique_ptr<parallel::Policy> gather;
  std::unique_ptr<parallel::Executor> executor;
};

/// Everything but the weights; no ATen operation, so that ranks can still be started. Error{Format}
/// when there is nothing to open, or it is damaged.
std::unique_ptr<OpenModel> find_model(const std::filesystem::path& path);
/// Before the weights are loaded: the model has another objective than the one that was saved,
/// whose parameters are all among those that were saved. Error{Config} for an unknown one.
void set_objective(OpenModel& model, const models::ObjectiveChoice& objective);
/// Refuses a found model whose weights, shared by `ranks` ranks of this host, need more than 95 %
/// of `available` bytes while they are read: Error{Memory} with both numbers. Logits and caches are
/// not counted: they depend on what is asked of the model. Error{Unsupported} for Int8 on several.
void check_memory(const OpenModel& model,
                  int ranks,
                  std::uint64_t available,
                  ReadAs as = ReadAs::F32);
/// The weights, all of them on this process. `threads`: 0 takes all usable cores.
void load_model(OpenModel& model, int threads = 0, ReadAs as = ReadAs::F32);
/// Those that this rank holds: sharded as in ZeRO stage 3 over the ranks of `world`, which outlives
/// the model. Reads nothing else of the checkpoint. Collective, as is every use of the executor
/// from then on. Memory: beside the weights, where they are not fp32, the largest block in fp32.
void load_model(OpenModel& model, comm::World& world, ReadAs as = ReadAs::F32);

}  // namespace tessera::engine

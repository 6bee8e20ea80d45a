// SPDX-License-Identifier: Apache-2.0
// Opens a trained model for reading: a run, a checkpoint or a Hugging Face folder, in this process
// alone or sharded over ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/comm/world.h"
#include "tessera/config/json.h"
#include "tessera/memory/tiers/tier.h"
#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/text/tokenizer.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::planner {
struct Plan;
}

namespace tessera::engine {

/// The dtype of the weights of a model that is only read. BF16: activations and the KV cache are
/// bf16 too. Int8: matrices have 8-bit integers with a scale per row, everything else is bf16; only
/// on one rank, and only for generation.
enum class ReadAs : std::uint8_t { F32, BF16, Int8 };
/// The number of copies of the weights of a model that is only read: one, sharded over the
/// data-parallel ranks, which gather them block by block, or a whole one on each of them.
enum class Copies : std::uint8_t { One, Each };
/// "fp32", "bf16" or "int8"; throws Error{Config} for any other name.
ReadAs read_as_from_name(std::string_view name);
std::string_view name(ReadAs as);

/// The disk on which the weights of a model rest while no block reads them.
struct OpenOffload {
  parallel::WeightOffload weights;
  memory::TierOptions disk;
  bool operator==(const OpenOffload&) const = default;
};

/// Used by one thread.
struct OpenModel {
  models::Resolved shape;
  text::TokenizerPtr tokenizer;
  std::optional<json::Value> config;  ///< of the run that trained it, without model.from
  int trained_on = 1;                 ///< number of ranks of that run
  std::filesystem::path source;       ///< the checkpoint or folder to read
  std::filesystem::path beside;       ///< folder of the tokenizer's files if `source` has none
  models::WeightSource weights;       ///< of an imported model; else empty
  // load_model() sets the following fields.
  std::unique_ptr<comm::World> alone;  ///< the world of a process without other ranks
  comm::World* world = nullptr;
  std::unique_ptr<memory::Tier> tier;  ///< of weights that rest on a disk
  std::unique_ptr<parallel::ModelInstance> model;
  std::unique_ptr<parallel::Policy> gather;
  std::unique_ptr<parallel::Executor> executor;
};

/// Finds everything except the weights. It runs no ATen operation, so that ranks can still be
/// started. `needs_tokenizer`: if false, that of a Hugging Face folder, which may have none, is not
/// read. Throws Error{Format} if there is nothing to open, or it is damaged.
std::unique_ptr<OpenModel> find_model(const std::filesystem::path& path,
                                      bool needs_tokenizer = true);
/// Replaces the saved objective by one whose parameters were all saved; call before the weights are
/// loaded. Throws Error{Config} for an unknown one.
void set_objective(OpenModel& model, const models::ObjectiveChoice& objective);
/// Returns the model with which a run begins, without an adapter; as find_model(), without the
/// weights.
std::unique_ptr<OpenModel> initial_model(const planner::Plan& plan);
/// Throws Error{Memory} if the weights of a found model, shared by `ranks` ranks of this host, need
/// more than 95 % of `available` bytes while they are read; the message has both numbers. Logits
/// and caches are not counted, because they depend on the use. `sharers`: how many of the ranks
/// compute each layer together; `beside`: another found model that is in memory at the same time,
/// in the same dtype; nullptr: there is none. Throws Error{Unsupported} for Int8 if the ranks do
/// not all compute each layer together.
void check_memory(const OpenModel& model,
                  int ranks,
                  std::uint64_t available,
                  ReadAs as = ReadAs::F32,
                  int sharers = 1,
                  const OpenModel* beside = nullptr);
/// Loads all weights into this process. `threads`: 0 uses all usable cores.
void load_model(OpenModel& model, int threads = 0, ReadAs as = ReadAs::F32);
/// Loads this rank's weights: its part of every layer, if ranks of `world` share layers
/// (tensor-parallel axes), sharded as in ZeRO stage 3 over the rest. `world` must outlive the
/// model; reads no other part of the checkpoint. Collective, as is every later use of the executor.
/// Memory: in addition to the weights, if they are not fp32, the largest block in fp32. `offload`:
/// the weights rest on a disk, also on a single rank, and only Copies::One is possible; not Int8.
void load_model(OpenModel& model,
                comm::World& world,
                ReadAs as = ReadAs::F32,
                Copies copies = Copies::One,
                const std::optional<OpenOffload>& offload = {});
/// The same for a model that has the frozen parameters of `lender`, a model in training that began
/// as it: all parameters but those of the objective are the lender's memory, in its layout, and are
/// not read again. The lender's weights must be complete. Throws Error{Unsupported} if its layout
/// has them apart.
void load_model(OpenModel& model, comm::World& world, const parallel::ModelInstance& lender);

}  // namespace tessera::engine

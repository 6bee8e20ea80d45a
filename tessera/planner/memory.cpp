// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/memory.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/comm/transports/shapes.h"
#include "tessera/comm/world.h"
#include "tessera/memory/tiers/tier.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/parallel/byte_codes.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/gather_order.h"
#include "tessera/parallel/kept_state.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/reduction_options.h"
#include "tessera/parallel/row_exchange.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/parallel/update_units.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/travel.h"
#include "tessera/tensor/dtype.h"

namespace tessera::planner {
namespace {

// A flat buffer of a stage, as parallel/ lays it out, and what the update keeps for it on the first
// data-parallel rank, which has the least padding.
struct Buffer {
  std::int64_t numel = 0, uses = 0;
  std::int64_t owned = 0;        // elements that the rank updates
  std::int64_t state_bytes = 0;  // for these elements
  std::int64_t wide_bytes = 0;   // in fp32, for those states that are stored in fewer bits
  std::int64_t largest = 0;      // elements of a parameter
  std::int64_t resting = 0;      // bytes of masters and states that rest on a disk
  std::int64_t on_disk = 0;      // of them there, in whole blocks
  std::int64_t largest_unit = 0, units = 0;  // the same, of the largest unit; number of these units
  bool trained = true, sharded = false;
  bool gathers_codes = false;        // sharded, and gathers move 8-bit integers
  std::int64_t packed = 0;           // bytes of weights in fewer bits, which are always allocated
  std::int64_t rows = 0, width = 0;  // of a table over the vocabulary, as held by a rank
  std::int64_t whole = 0;            // elements of parameters whose direction one rank transforms
  std::int64_t largest_whole = 0;    // of the largest of these
  std::vector<int> blocks;           // blocks of the stage that use it
};

// True if checkpoints contain frozen parameters; those of an adapter name its base instead.
bool saves_frozen(const Plan& plan) {
  return plan.model().adapter == nullptr ||
         (!plan.model().options->from && !plan.model().rules.packed);
}

// Bytes of the states of a parameter of which the rank updates `numel` elements; `elements`: dtype
// of elementwise states. `saved`: as stored in a checkpoint. States of rows and columns have one
// owner among `ranks`.
std::int64_t state_bytes(const optim::Rule& rule,
                         const ParamInfo& info,
                         std::int64_t numel,
                         DType elements,
                         std::int64_t ranks,
                         bool saved = false) {
  const optim::ParamFacts facts = parallel::facts_of(info);
  std::int64_t bytes = 0;
  std::size_t index = 0;
  for (const optim::StateSpec& state : rule.state(facts)) {
    const std::int64_t count = parallel::state_numel(state, facts, numel);
    const optim::KeptIn kept_in =
        saved ? optim::KeptIn::Type : optim::kept_in(rule, facts, index++);
    bytes += state.extent == optim::Extent::Elements
                 ? parallel::kept_bytes(kept_in, elements, count)
                 : count * static_cast<std::int64_t>(size_of(state.dtype)) / ranks;
  }
  return bytes;
}

// Bytes of the elementwise states of `numel` elements of a parameter.
std::int64_t elementwise_bytes(const optim::Rule& rule,
                               const ParamInfo& info,
                               std::int64_t numel,
                               DType elements) {
  const optim::ParamFacts facts = parallel::facts_of(info);
  std::int64_t bytes = 0;
  std::size_t index = 0;
  for (const optim::StateSpec& state : rule.state(facts)) {
    const optim::KeptIn kept_in = optim::kept_in(rule, facts, index++);
    if (state.extent == optim::Extent::Elements)
      bytes += parallel::kept_bytes(kept_in, elements, numel);
  }
  return bytes;
}

// Bytes in fp32 of elementwise states that are stored in fewer bits.
std::int64_t wide_bytes(const optim::Rule& rule,
                        const ParamInfo& info,
                        std::int64_t numel,
                        DType elements) {
  const optim::ParamFacts facts = parallel::facts_of(info);
  std::int64_t bytes = 0;
  std::size_t index = 0;
  for (const optim::StateSpec& state : rule.state(facts)) {
    const bool narrow =
        elements != DType::F32 || optim::kept_in(rule, facts, index++) != optim::KeptIn::Type;
    if (state.extent == optim::Extent::Elements && narrow) bytes += 4 * numel;
  }
  return bytes;
}

// Bytes that a rank keeps per trained parameter in addition to its shards if ranks exchange signs:
// the whole exchanged vector, the error feedback, the messages, and separate masters.
double exchange_bytes(const Plan& plan) {
  const ExchangeNeeds needs = exchange_needs(plan.recipe().optimizer);
  if (!needs.compressed) return 0;
  const double n = plan.layout().data_ranks;
  double bytes = needs.local_weights && plan.layout().working == DType::F32 ? 4 : 0;
  if (plan.layout().zero_stage > 0) bytes += 4 - 4 / n;
  if (plan.layout().data_ranks > 1) bytes += 4 + 4 / n + 3.0 / 8;
  return bytes;
}

// The blocks of the model with their parameters as the first rank holds them.
std::vector<parallel::BlockParams> placed_blocks(const Plan& plan) {
  const parallel::TensorOptions::Grid& grid = plan.layout().grid;
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  std::unique_ptr<comm::World> world;
  nn::TensorParallel tensor;
  if (grid.size() > 1) {
    world = comm::shape_world(
        mesh::Mesh({.tp_depth = of(grid.depth), .tp_row = of(grid.row), .tp_col = of(grid.col)}),
        /*rank=*/0);
    tensor = {world.get(), &world->group(mesh::AxisSet::tp()), plan.layout().tensor_mode()};
  }
  std::vector<parallel::BlockParams> out;
  for (const nn::BlockSpec& spec : plan.model().resolved.model.blocks) {
    parallel::BlockParams block{spec.name, {}};
    for (const auto& declared : nn::declared_by(spec)) {
      Param param(declared);
      if (plan.model().rules.frozen && plan.model().rules.frozen(declared->name)) param.freeze();
      nn::place(param, world ? &tensor : nullptr, /*experts=*/nullptr);
      block.params.push_back(param.shared_info());
    }
    out.push_back(std::move(block));
  }
  return out;
}

// The blocks of the model on a stage.
std::vector<int> blocks_of(const Plan& plan, int stage) {
  std::vector<int> out;
  const auto count = static_cast<int>(plan.model().resolved.model.blocks.size());
  for (int chunk = 0; chunk < plan.layout().stages.chunks; ++chunk) {
    const auto [first, last] = plan.layout().stages.blocks(stage, chunk, count);
    for (int b = first; b < last; ++b)
      out.push_back(b);
  }
  return out;
}

// Adds the units of a trained buffer that rest on a disk, as ShardStore cuts them.
void add_resting(const Plan& plan,
                 const optim::Rule& rule,
                 const FlatLayout& layout,
                 const parallel::OwnedRange& owned,
                 Buffer& buffer) {
  if (!plan.layout().offload) return;
  const parallel::StateOffload& offload = *plan.layout().offload;
  const bool masters = parallel::has_separate_masters(
      plan.layout().working, plan.layout().kept.masters, /*local_weights=*/false);
  std::vector<parallel::UnitParam> params;
  for (const Segment& segment : layout.segments()) {
    const Segment range = owned.of(segment);
    const bool whole = rule.scope(parallel::facts_of(*segment.info)) == optim::Scope::WholeTensor;
    if (range.numel > 0) params.push_back({range.begin - owned.begin, range.numel, whole});
  }
  const std::int64_t block = memory::TierOptions().block_bytes;
  for (const parallel::Unit& unit :
       parallel::cut_units(0, owned.numel, params, offload.unit_elements)) {
    if (!parallel::StatePlace::rests(unit, owned.numel, offload.share)) continue;
    std::int64_t bytes = masters ? 4 * unit.numel : 0;
    const std::int64_t begin = owned.begin + unit.begin;
    for (const Segment& segment : layout.segments()) {
      const std::int64_t numel = segment.within(begin, begin + unit.numel).numel;
      if (numel > 0)
        bytes += elementwise_bytes(rule, *segment.info, numel, plan.layout().kept.states);
    }
    if (bytes == 0) continue;
    const std::int64_t blocks = (bytes + block - 1) / block * block;
    buffer.resting += bytes;
    buffer.on_disk += blocks;
    buffer.largest_unit = std::max(buffer.largest_unit, blocks);
    ++buffer.units;
  }
}

std::vector<Buffer> buffers_of(const Plan& plan, int stage) {
  const auto rule = make_rule(plan.recipe());
  parallel::WeightOptions weights = plan.layout().weight_options(plan.model().rules);
  const bool sharding = plan.layout().zero_stage == 3 && plan.layout().shard_ranks > 1;
  weights.residency = sharding ? parallel::Residency::Sharded : parallel::Residency::Whole;
  const std::vector<int> blocks = blocks_of(plan, stage);
  std::vector<Buffer> out;
  for (const parallel::FlatGroupPlan& group :
       parallel::plan_flat_groups(placed_blocks(plan), weights).groups) {
    Buffer buffer;
    for (const parallel::FlatGroupPlan::BlockUse& use : group.uses) {
      const auto at = std::find(blocks.begin(), blocks.end(), use.block);
      if (at != blocks.end()) buffer.blocks.push_back(static_cast<int>(at - blocks.begin()));
    }
    if (buffer.blocks.empty()) continue;
    const FlatLayout layout = group.layout(plan.layout().data_ranks);
    const parallel::OwnedRange owned =
        parallel::owned_range(layout, std::min(plan.layout().zero_stage, 1), /*index=*/0);
    buffer.numel = layout.numel();
    buffer.owned = owned.numel;
    buffer.uses = std::ssize(buffer.blocks);
    buffer.trained = group.trainable;
    buffer.sharded = group.residency == parallel::Residency::Sharded;
    const parallel::GatherForm form =
        group.trainable ? weights.trained_gather : weights.frozen_gather;
    buffer.gathers_codes = buffer.sharded && form == parallel::GatherForm::Int8;
    if (group.packed()) buffer.packed = parallel::packed_bytes(layout, weights.packing);
    for (const Segment& segment : layout.segments()) {
      const ParamInfo& info = *segment.info;
      buffer.largest = std::max(buffer.largest, segment.numel);
      if (info.role == Role::TokenTable && (info.tied || weights.tables_apart)) {
        buffer.rows = info.shape.front();
        buffer.width = segment.numel / buffer.rows;
      }
      if (!group.trainable) continue;
      buffer.state_bytes +=
          state_bytes(*rule,
                      info,
                      owned.of(segment).numel,
                      plan.layout().kept.states,
                      plan.layout().zero_stage >= 1 ? plan.layout().data_ranks : 1);
      buffer.wide_bytes +=
          wide_bytes(*rule, info, owned.of(segment).numel, plan.layout().kept.states);
      if (rule->scope(parallel::facts_of(info)) != optim::Scope::WholeTensor) continue;
      buffer.whole += segment.numel;
      buffer.largest_whole = std::max(buffer.largest_whole, segment.numel);
    }
    if (group.trainable) add_resting(plan, *rule, layout, owned, buffer);
    out.push_back(std::move(buffer));
  }
  return out;
}

// Bytes of a buffer's working weights on a rank while they are not gathered.
std::int64_t weight_bytes(const Plan& plan, const Buffer& buffer) {
  const auto value = static_cast<std::int64_t>(size_of(plan.layout().working));
  if (buffer.packed > 0) return buffer.packed;
  if (!buffer.sharded) return buffer.numel * value;
  // The rank's own part is exact, and it keeps the codes of the parts of its group.
  if (buffer.gathers_codes) {
    return buffer.numel * value / plan.layout().data_ranks +
           parallel::byte_codes(buffer.numel) / plan.layout().shard_ranks;
  }
  return buffer.numel * value / plan.layout().shard_ranks;
}

// The maximum number of gathered elements of sharded weights in a step with two micro-batches.
// `count`: number of blocks of the stage.
std::int64_t most_gathered(const Plan& plan, const std::vector<Buffer>& buffers, int count) {
  parallel::GroupsOfBlocks blocks(static_cast<std::size_t>(count));
  std::vector<std::int64_t> numel;
  for (const Buffer& buffer : buffers) {
    if (!buffer.sharded && buffer.packed == 0) continue;
    for (const int block : buffer.blocks)
      blocks[static_cast<std::size_t>(block)].push_back(static_cast<int>(numel.size()));
    numel.push_back(buffer.numel);
  }
  std::vector<int> trace;
  for (std::int64_t micro = 0; micro < std::min<std::int64_t>(plan.layout().accumulation, 2);
       ++micro) {
    for (int block = 0; block < count; ++block)
      trace.push_back(block);
    for (int block = count - 1; block >= 0; --block)
      trace.push_back(block);
  }
  parallel::GatherOrder order(std::move(blocks), std::move(numel), plan.layout().gather);
  order.begin(std::move(trace));
  while (order.next()) {
    order.before();
    order.ahead();
    order.after();
  }
  return order.most_live();
}

// Bytes for directions of `numel` elements, which all exist before the first is transformed: each
// rank's shard of them, the messages to their owners, and the one that an owner assembles.
std::int64_t direction_bytes(std::int64_t numel, std::int64_t largest, std::int64_t shards) {
  const std::int64_t mine = 4 * numel / shards;
  return shards == 1 ? mine : mine + mine / shards * (shards - 1) + 4 * largest;
}

// Number of rows for which a rank has memory if a table's gradient consists of rows: its own rows,
// which may all differ, the sums over all ranks, which one rank may own, and message buffers. 0 if
// there are too many for it. Buffers that grow may be twice as large.
std::int64_t rows_kept(const Plan& plan, const Buffer& buffer) {
  constexpr std::int64_t kShare = parallel::TablePlace::kShare;
  const std::int64_t n = plan.layout().data_ranks,
                     tokens = plan.layout().micro_batch * plan.data().sequence_length;
  const bool wide = plan.layout().sums == DType::F32 && plan.layout().sent == DType::F32;
  const bool asked = buffer.uses > 1 || (plan.layout().sparse_rows && n > 1);
  const std::int64_t own =
      plan.layout().reduction_options().locally() ? plan.layout().accumulation * tokens : tokens;
  if (buffer.rows == 0 || !wide || !asked || n * own * kShare > buffer.rows) return 0;
  const std::int64_t owned = buffer.rows / n, sums = n * plan.layout().accumulation * tokens;
  const std::int64_t in_sums = sums * kShare > owned ? owned : 2 * sums;
  return 2 * own + in_sums + (n > 1 ? 2 * n * own : 0);
}

}  // namespace

std::string MemoryEstimate::text() const {
  const auto in_bytes = [](std::int64_t count) {
    return text::bytes(static_cast<std::uint64_t>(count));
  };
  return fmt::format(
      "parameters {}, gradients {}, optimizer {}{}, activations {}, other {}{}{}",
      in_bytes(parameters),
      in_bytes(gradients),
      in_bytes(optimizer),
      disk > 0 ? fmt::format(" (and {} on the disk)", in_bytes(disk)) : "",
      unknown.empty() ? in_bytes(activations) : fmt::format("not predicted ({})", unknown),
      in_bytes(other),
      copies > 0 ? ", copies " + in_bytes(copies) : "",
      shared > 0 ? "; " + in_bytes(shared) + " are shared by gradients and activations" : "");
}

namespace {

// The estimate for a rank of a stage.
MemoryEstimate estimate_stage(const Plan& plan, int stage) {
  const std::int64_t n = plan.layout().data_ranks, shards = plan.layout().zero_stage >= 1 ? n : 1;
  const auto value = static_cast<std::int64_t>(size_of(plan.layout().working));
  const auto sum = static_cast<std::int64_t>(size_of(plan.layout().sums));
  const parallel::ReductionOptions reduction = plan.layout().reduction_options();
  const bool local = reduction.locally();
  const double exchange = exchange_bytes(plan);
  MemoryEstimate out;
  std::map<std::int64_t, int> uses_of_size;
  const bool narrow_masters = plan.layout().kept.masters != DType::F32;
  const bool masters = parallel::has_separate_masters(
      plan.layout().working, plan.layout().kept.masters, /*local_weights=*/false);
  bool narrow_states = false, gathers_codes = false;
  std::int64_t units = 0, largest_unit = 0;  // that rest on a disk
  std::int64_t widest = 0, saved = 0, directions = 0, largest_whole = 0, largest = 0;
  std::int64_t sums = 0, in_rows = 0, largest_sum = 0, residuals = 0;  // for gradients
  const bool lends = plan.layout().accumulation == 1 && !(local && n > 1);
  const std::vector<Buffer> buffers = buffers_of(plan, stage);
  for (const Buffer& buffer : buffers) {
    out.parameters += weight_bytes(plan, buffer);
    gathers_codes = gathers_codes || buffer.gathers_codes;
    // A frozen parameter has only its working weights, which a save widens if it contains them.
    const bool own_masters = masters && buffer.trained;
    const bool in_saves = buffer.trained || saves_frozen(plan);
    out.optimizer += buffer.state_bytes + (own_masters ? 4 * buffer.owned : 0) - buffer.resting;
    out.disk += buffer.on_disk;
    units += buffer.units;
    largest_unit = std::max(largest_unit, buffer.largest_unit);
    if (value < 4 && !own_masters && in_saves) saved += 4 * buffer.owned;
    saved += buffer.wide_bytes;
    if (!buffer.trained) continue;
    widest = std::max(widest, std::min(buffer.largest, buffer.owned));
    narrow_states = narrow_states || buffer.wide_bytes > 0;
    largest = std::max(largest, buffer.largest);
    directions += buffer.whole;
    largest_whole = std::max(largest_whole, buffer.largest_whole);
    out.optimizer += static_cast<std::int64_t>(exchange * static_cast<double>(buffer.numel));
    // Of the uses of a tied table, that of the embedding needs only its few rows.
    const std::int64_t rows = rows_kept(plan, buffer);
    const bool instead = rows > 0 && buffer.uses > 1 && !(local && n > 1);
    const std::int64_t bytes = buffer.numel * sum / (local ? 1 : n);
    sums += (instead ? buffer.uses - 1 : buffer.uses) * bytes;
    in_rows += rows * buffer.width * sum;
    largest_sum = std::max(largest_sum, bytes);
    if (reduction.keeps_residuals(plan.layout().data_ranks))
      residuals += 2 * buffer.uses * buffer.numel;
    uses_of_size[buffer.numel] += static_cast<int>(buffer.uses);
  }
  if (plan.layout().offload)
    out.optimizer += std::min<std::int64_t>(plan.layout().offload->buffers, units) * largest_unit;
  out.gradients = sums + in_rows + residuals;
  saved += residuals;  // a copy of them
  const int ranks = plan.layout().data_ranks;
  for (const auto& [numel, uses] : uses_of_size)
    out.gradients +=
        parallel::in_flight(reduction, ranks, numel, uses).bytes(reduction, ranks, numel);
  // Values kept in 16 bits are updated in fp32, one parameter after the other.
  if (narrow_masters) out.optimizer += 4 * widest;
  if (narrow_states) out.optimizer += 8 * widest;
  out.optimizer += direction_bytes(directions, largest_whole, shards);
  // Momenta are completed one tensor after the other, with a buffer of the same size.
  if (exchange > 0 && shards > 1) out.optimizer += 8 * largest;
  const auto blocks = static_cast<std::int64_t>(blocks_of(plan, stage).size());
  const std::int64_t gathered = most_gathered(plan, buffers, static_cast<int>(blocks));
  out.parameters += gathered * value;
  if (gathers_codes) out.parameters += parallel::byte_codes(gathered);
  Activations activations = predict_activations(plan, stage);
  // The buffer is saved in fp32 when there are no activations.
  const std::int64_t resting = std::max(activations.evaluation, saved);
  out.activations = std::max(activations.training, resting);
  out.unknown = std::move(activations.unknown);
  if (lends && out.unknown.empty()) {
    // The backward pass begins with all activations and the head's gradient, and ends with all
    // gradients and one block's activations.
    const std::int64_t most = std::max(
        {activations.training + largest_sum, sums + activations.training / blocks, sums + resting});
    out.shared = std::max<std::int64_t>(0, sums + out.activations - most);
  }
  out.other =
      kProcessBytes + plan.model().teacher_bytes + plan.needs().beside + plan.needs().traveling;
  out.copies = copy_bytes(plan);
  return out;
}

}  // namespace

MemoryEstimate estimate_memory(const Plan& plan) {
  MemoryEstimate most;
  for (int stage = 0; stage < plan.layout().stages.stages; ++stage) {
    MemoryEstimate need = estimate_stage(plan, stage);
    if (stage == 0 || need.total() > most.total()) most = std::move(need);
  }
  return most;
}

std::int64_t offload_bytes(const Plan& plan) {
  if (!plan.layout().offload) return 0;
  std::int64_t most = 0;
  for (int stage = 0; stage < plan.layout().stages.stages; ++stage) {
    std::int64_t bytes = 0;
    for (const Buffer& buffer : buffers_of(plan, stage))
      bytes += buffer.on_disk;
    most = std::max(most, bytes);
  }
  return most;
}

std::int64_t travel_bytes(const Plan& plan, int host_ranks) {
  std::int64_t most = 0;
  for (int stage = 0; stage < plan.layout().stages.stages; ++stage) {
    const std::vector<Buffer> buffers = buffers_of(plan, stage);
    std::vector<TravelingBuffer> traveling;
    for (const Buffer& buffer : buffers)
      traveling.push_back({buffer.numel, buffer.uses, buffer.trained, buffer.sharded});
    const auto blocks = static_cast<int>(blocks_of(plan, stage).size());
    const std::int64_t gathered = most_gathered(plan, buffers, blocks);
    most = std::max(most, travel_bytes(plan, host_ranks, traveling, gathered));
  }
  return most;
}

std::int64_t checkpoint_bytes(const Plan& plan) {
  // Every rank's own error feedback, and the owners'; with local weights, two states of every rank.
  const ExchangeNeeds needs = exchange_needs(plan.recipe().optimizer);
  const std::int64_t of_rank = needs.local_weights ? 3 : needs.compressed ? 1 : 0;
  const std::int64_t errors =
      plan.layout().data_ranks > 1 ? 4 * (of_rank * plan.layout().data_ranks + (of_rank > 0)) : 0;
  std::int64_t bytes = 0;
  // Checkpoints contain fp32, whatever the dtypes of the run.
  const auto rule = make_rule(plan.recipe());
  const auto& frozen = plan.model().rules.frozen;
  for (const auto& info : nn::parameters_of(plan.model().resolved.model)) {
    const bool trained = info->trainable && !(frozen && frozen(info->name));
    if (!trained && !saves_frozen(plan)) continue;
    bytes += (4 + errors) * info->numel();
    if (!trained) continue;
    bytes += state_bytes(*rule, *info, info->numel(), DType::F32, /*ranks=*/1, /*saved=*/true);
  }
  if (!plan.layout().reduction_options().keeps_residuals(plan.layout().data_ranks)) return bytes;
  for (const nn::BlockSpec& spec : plan.model().resolved.model.blocks) {
    for (const auto& info : nn::declared_by(spec)) {
      if (info->trainable && !(frozen && frozen(info->name)))
        bytes += 2 * plan.layout().data_ranks * info->numel();
    }
  }
  return bytes;
}

namespace {

// Returns the number of ranks that write. Ranks that share tokens hold the same data, and the first
// of them writes it.
std::int64_t writers(const Plan& plan) {
  return plan.ranks() / plan.layout().context;
}

}  // namespace

std::int64_t copy_bytes(const Plan& plan) {
  const std::int64_t holders = 1 + plan.run().checkpoint.peer_copies;
  if (holders == 1) return 0;
  constexpr std::int64_t kSets = 2;  // the last one is complete until the next one is
  return kSets * holders * checkpoint_bytes(plan) / plan.ranks();
}

bool copies_while_training(const Plan& plan) {
  const checkpoint::Options& options = plan.run().checkpoint;
  // The last checkpoint, and that after a signal, are written directly from the tensors.
  const bool during = options.interval_s() || options.when().any() || options.keeps_best();
  return (plan.run().saves_in_background && during) || options.peer_copies > 0;
}

std::int64_t saving_bytes(const Plan& plan) {
  if (!copies_while_training(plan)) return 0;
  // fp32 values on a disk are read from there.
  std::int64_t least = 0;
  for (int stage = 0; stage < plan.layout().stages.stages && plan.layout().offload; ++stage) {
    std::int64_t resting = 0;
    for (const Buffer& buffer : buffers_of(plan, stage))
      resting += buffer.wide_bytes == 0 ? buffer.resting : 0;
    least = stage == 0 ? resting : std::min(least, resting);
  }
  return std::max<std::int64_t>(0, checkpoint_bytes(plan) / writers(plan) - least);
}

namespace {

constexpr const char* kFolder = "zero_optimization.offload_optimizer.nvme_path";

}  // namespace

void check_offload_folder(const Plan& plan, std::vector<std::string>& notes) {
  if (!plan.layout().offload) return;
  const std::string& folder = plan.layout().offload->folder;
  std::error_code ignored;
  TESSERA_REQUIRE(
      std::filesystem::is_directory(folder, ignored) && ::access(folder.c_str(), W_OK | X_OK) == 0,
      Io,
      fmt::format("{}: {} is not a folder in which files can be made", kFolder, folder),
      "create the folder on each host, or name another one");
  const auto rule = make_rule(plan.recipe());
  const auto stays = [&](const auto& info) {
    return std::ranges::any_of(
        rule->state(parallel::facts_of(*info)),
        [](const optim::StateSpec& state) { return state.extent != optim::Extent::Elements; });
  };
  if (std::ranges::any_of(nn::parameters_of(plan.model().resolved.model), stays)) {
    notes.push_back(fmt::format(
        "zero_optimization.offload_optimizer: the states of {} by rows and columns stay "
        "in memory",
        plan.recipe().optimizer.type));
  }
  constexpr long kInMemory = 0x01021994;  // TMPFS_MAGIC
  struct statfs status {};
  if (::statfs(folder.c_str(), &status) == 0 && status.f_type == kInMemory) {
    notes.push_back(
        fmt::format("{}: {} is in memory (tmpfs), so that nothing is gained there; a folder on a "
                    "disk saves memory",
                    kFolder,
                    folder));
  }
}

void check_offload_space(const Plan& plan, int ranks) {
  if (!plan.layout().offload) return;
  const std::string& folder = plan.layout().offload->folder;
  const bool twice = copies_while_training(plan);
  const auto need = static_cast<std::uint64_t>(offload_bytes(plan) * ranks * (twice ? 2 : 1));
  const std::uint64_t free = files::free_bytes(folder);
  TESSERA_REQUIRE(need <= free,
                  Io,
                  fmt::format("{}: {} has {} free, and masters and states need {}{}",
                              kFolder,
                              folder,
                              text::bytes(free),
                              text::bytes(need),
                              twice ? ", of which half while a checkpoint is written" : ""),
                  fmt::format("free space there, name a folder on another disk{}",
                              twice ? ", or set checkpoint.async to false" : ""));
}

}  // namespace tessera::planner

// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/memory.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/transports/shapes.h"
#include "tessera/comm/world.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/parallel/byte_codes.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/gather_order.h"
#include "tessera/parallel/kept_state.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/reduction_options.h"
#include "tessera/parallel/row_exchange.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/stages.h"
#include "tessera/tensor/dtype.h"

namespace tessera::planner {
namespace {

// Share of the free memory; the rest is a reserve for fluctuations.
constexpr double kUsable = 0.95;
constexpr std::int64_t kProcess = std::int64_t{48}
                                  << 20;  // libraries' own data, file buffers, stacks

// A flat buffer of a stage, as parallel/ lays it out, and what the update keeps for it on the first
// data-parallel rank, which has the least padding.
struct Buffer {
  std::int64_t numel = 0, uses = 0;
  std::int64_t owned = 0;        // elements that the rank updates
  std::int64_t state_bytes = 0;  // for these elements
  std::int64_t wide_bytes = 0;   // in fp32, for those states that are stored in fewer bits
  std::int64_t largest = 0;      // elements of a parameter
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
  return plan.adapter == nullptr || (!plan.config.model->from && !plan.weight_layout.packed);
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
  const ExchangeNeeds needs = exchange_needs(plan.config.optimizer);
  if (!needs.compressed) return 0;
  const double n = plan.data_ranks;
  double bytes = needs.local_weights && plan.working == DType::F32 ? 4 : 0;
  if (plan.zero_stage > 0) bytes += 4 - 4 / n;
  if (plan.data_ranks > 1) bytes += 4 + 4 / n + 3.0 / 8;
  return bytes;
}

// The blocks of the model with their parameters as the first rank holds them.
std::vector<parallel::BlockParams> placed_blocks(const Plan& plan) {
  const TensorOptions::Grid grid = plan.config.parallel.tensor.grid();
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  std::unique_ptr<comm::World> world;
  nn::TensorParallel tensor;
  if (grid.size() > 1) {
    world = comm::shape_world(mesh::Mesh({1, 1, 1, 1, of(grid.depth), of(grid.row), of(grid.col)}),
                              /*rank=*/0);
    tensor = {world.get(), &world->group(mesh::AxisSet::tp()), plan.weight_layout.tensor};
  }
  std::vector<parallel::BlockParams> out;
  for (const nn::BlockSpec& spec : plan.model.model.blocks) {
    parallel::BlockParams block{spec.name, {}};
    for (const auto& declared : nn::declared_by(spec)) {
      Param param(declared);
      if (plan.weight_layout.frozen && plan.weight_layout.frozen(declared->name)) param.freeze();
      if (world) nn::place(param, tensor);
      block.params.push_back(param.shared_info());
    }
    out.push_back(std::move(block));
  }
  return out;
}

// The blocks of the model on a stage.
std::vector<int> blocks_of(const Plan& plan, int stage) {
  std::vector<int> out;
  const auto count = static_cast<int>(plan.model.model.blocks.size());
  for (int chunk = 0; chunk < plan.stages.chunks; ++chunk) {
    const auto [first, last] = plan.stages.blocks(stage, chunk, count);
    for (int b = first; b < last; ++b)
      out.push_back(b);
  }
  return out;
}

std::vector<Buffer> buffers_of(const Plan& plan, int stage) {
  const auto rule = make_rule(plan);
  parallel::WeightOptions weights = plan.weight_layout;
  const bool sharding = plan.zero_stage == 3 && plan.shard_ranks > 1;
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
    const FlatLayout layout = group.layout(plan.data_ranks);
    const parallel::OwnedRange owned =
        parallel::owned_range(layout, std::min(plan.zero_stage, 1), /*index=*/0);
    buffer.numel = layout.numel();
    buffer.owned = owned.numel;
    buffer.uses = std::ssize(buffer.blocks);
    buffer.trained = group.trainable;
    buffer.sharded = group.residency == parallel::Residency::Sharded;
    const parallel::GatherForm form =
        group.trainable ? weights.trained_gather : weights.frozen_gather;
    buffer.gathers_codes = buffer.sharded && form == parallel::GatherForm::Int8;
    if (group.residency == parallel::Residency::Packed)
      buffer.packed = parallel::packed_bytes(layout, weights.packing);
    for (const Segment& segment : layout.segments()) {
      const ParamInfo& info = *segment.info;
      buffer.largest = std::max(buffer.largest, segment.numel);
      if (info.role == Role::TokenTable && (info.tied || weights.tables_apart)) {
        buffer.rows = info.shape.front();
        buffer.width = segment.numel / buffer.rows;
      }
      if (!group.trainable) continue;
      buffer.state_bytes += state_bytes(*rule,
                                        info,
                                        owned.of(segment).numel,
                                        plan.kept.states,
                                        plan.zero_stage >= 1 ? plan.data_ranks : 1);
      buffer.wide_bytes += wide_bytes(*rule, info, owned.of(segment).numel, plan.kept.states);
      if (rule->scope(parallel::facts_of(info)) != optim::Scope::WholeTensor) continue;
      buffer.whole += segment.numel;
      buffer.largest_whole = std::max(buffer.largest_whole, segment.numel);
    }
    out.push_back(std::move(buffer));
  }
  return out;
}

// Bytes of a buffer's working weights on a rank while they are not gathered.
std::int64_t weight_bytes(const Plan& plan, const Buffer& buffer) {
  const auto value = static_cast<std::int64_t>(size_of(plan.working));
  if (buffer.packed > 0) return buffer.packed;
  if (!buffer.sharded) return buffer.numel * value;
  // The rank's own part is exact, and it keeps the codes of the parts of its group.
  if (buffer.gathers_codes) {
    return buffer.numel * value / plan.data_ranks +
           parallel::byte_codes(buffer.numel) / plan.shard_ranks;
  }
  return buffer.numel * value / plan.shard_ranks;
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
  for (std::int64_t micro = 0; micro < std::min<std::int64_t>(plan.accumulation, 2); ++micro) {
    for (int block = 0; block < count; ++block)
      trace.push_back(block);
    for (int block = count - 1; block >= 0; --block)
      trace.push_back(block);
  }
  parallel::GatherOrder order(std::move(blocks), std::move(numel), plan.gather);
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
  const std::int64_t n = plan.data_ranks, tokens = plan.micro_batch * plan.sequence_length;
  const bool wide =
      plan.reduction.accumulate == DType::F32 && plan.reduction.comm_dtype == DType::F32;
  const bool asked = buffer.uses > 1 || (plan.reduction.sparse_rows && n > 1);
  const std::int64_t own = plan.reduction.locally() ? plan.accumulation * tokens : tokens;
  if (buffer.rows == 0 || !wide || !asked || n * own * kShare > buffer.rows) return 0;
  const std::int64_t owned = buffer.rows / n, sums = n * plan.accumulation * tokens;
  const std::int64_t in_sums = sums * kShare > owned ? owned : 2 * sums;
  return 2 * own + in_sums + (n > 1 ? 2 * n * own : 0);
}

// Ignores activations if they are not predicted.
bool fits(const MemoryEstimate& need, int ranks, std::uint64_t available) {
  return static_cast<double>(need.total()) * ranks <= kUsable * static_cast<double>(available);
}

bool fits(const Plan& plan, std::uint64_t available) {
  return fits(estimate_memory(plan), plan.ranks, available);
}

// The plan with another preset's sizes; nothing if they are incompatible.
std::optional<Plan> with_preset(const Plan& plan, const std::string& preset) {
  models::ModelOptions options = plan.config.model;
  options.choose_preset(preset);
  models::ObjectiveChoice objective;
  if (plan.task != nullptr)
    objective = {plan.task->objective(), plan.task->objective_options(plan.config.data)};
  config::Problems problems;
  Plan out = plan;
  out.probes = make_probe_cache();
  out.model = models::resolve(options,
                              plan.model.tokenizer_size,
                              plan.sequence_length,
                              problems,
                              config::Origins(),
                              objective);
  out.stages = place_blocks(out.config.parallel.pipeline,
                            out.model.model,
                            out.sequence_length,
                            problems,
                            config::Origins());
  if (!problems.empty() || out.model.num_parameters >= plan.model.num_parameters)
    return std::nullopt;
  return out;
}

// Smaller presets, the largest first.
std::vector<std::pair<std::string, Plan>> smaller_presets(const Plan& plan) {
  std::vector<std::pair<std::string, Plan>> out;
  if (plan.config.model->from) return out;
  const models::Family& family = models::families().get(plan.config.model.family());
  for (const std::string& preset : models::names_of(family.presets)) {
    if (auto smaller = with_preset(plan, preset)) out.emplace_back(preset, std::move(*smaller));
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.second.model.num_parameters > b.second.model.num_parameters;
  });
  return out;
}

// Searches for changes, one kind after the other, from the smallest change on.
class Search {
 public:
  Search(const Plan& plan, std::uint64_t available) : plan_(plan), available_(available) {}

  std::vector<std::string> run() {
    smaller_micro(plan_, "");
    shorter_sequence();
    fewer_ranks();
    in_bf16();
    higher_stage();
    run_twice();
    for (const auto& [name, smaller] : smaller_presets(plan_)) {
      if (found_.size() >= kMost) break;
      try_preset(name, smaller);
    }
    found_.resize(std::min(found_.size(), kMost));
    return std::move(found_);
  }

 private:
  static constexpr std::size_t kMost = 3;

  bool offer(const Plan& plan, const std::string& text) {
    if (!fits(plan, available_) || !estimate_memory(plan).unknown.empty()) return false;
    found_.push_back(text);
    return true;
  }

  static void set_accumulation(Plan& plan, std::int64_t micros) {
    plan.accumulation = micros;
    plan.reduction.max_micros = static_cast<int>(micros);
  }
  static void set_stage(Plan& plan, int stage) { plan.zero_stage = plan.reduction.stage = stage; }

  // Keeps the global batch: accumulation grows as the micro-batch shrinks.
  bool smaller_micro(Plan plan, const std::string& before) {
    const std::int64_t each = plan.micro_batch * plan.accumulation;
    for (std::int64_t micro = plan.micro_batch / 2; micro >= 1; micro /= 2) {
      if (each % micro != 0) continue;
      plan.micro_batch = micro;
      set_accumulation(plan, each / micro);
      const std::string text =
          fmt::format("train_micro_batch_size_per_gpu {} and gradient_accumulation_steps {}",
                      micro,
                      plan.accumulation);
      if (offer(plan, before + text)) return true;
    }
    return false;
  }

  void shorter_sequence() {
    Plan plan = plan_;
    for (std::int64_t length = plan_.sequence_length / 2; length >= 32; length /= 2) {
      plan.sequence_length = length;
      for (std::size_t i = 0; i < plan.sample.size(); ++i) {
        std::ranges::replace(
            plan.sample[i].shape = plan_.sample[i].shape, plan_.sequence_length, length);
      }
      if (length % plan_.config.parallel.token_unit() != 0) continue;
      if (offer(plan, fmt::format("data.sequence_length {}", length))) return;
    }
  }

  void fewer_ranks() {
    Plan plan = plan_;
    const int unit = plan_.ranks / plan_.data_ranks;
    for (int ranks = plan_.data_ranks / 2; ranks >= 1; ranks /= 2) {
      plan.data_ranks = ranks;
      plan.ranks = ranks * unit;
      if (ranks == 1) set_stage(plan, 0);
      if (plan_.shard_ranks == plan_.data_ranks) plan.shard_ranks = ranks;
      if (ranks % plan.shard_ranks != 0) continue;
      if (plan.global_batch % (plan.micro_batch * ranks) != 0) continue;
      set_accumulation(plan, plan.global_batch / plan.micro_batch / ranks);
      if (offer(plan,
                fmt::format(
                    "-n {} and gradient_accumulation_steps {}", plan.ranks, plan.accumulation)))
        return;
    }
  }

  void in_bf16() {
    if (plan_.working != DType::F32) return;
    Plan plan = plan_;
    plan.working = plan.weight_layout.working = DType::BF16;
    if (!offer(plan, "bf16.enabled true")) smaller_micro(plan, "bf16.enabled true, ");
  }

  void higher_stage() {
    Plan plan = plan_;
    const ExchangeNeeds needs = exchange_needs(plan_.config.optimizer);
    const int most = needs.local_weights ? 0 : needs.compressed ? 1 : 3;
    while (plan.data_ranks > 1 && plan.zero_stage < most) {
      set_stage(plan, plan.zero_stage + 1);
      if (offer(plan, fmt::format("zero_optimization.stage {}", plan.zero_stage))) return;
    }
  }

  void run_twice() {
    Plan plan = plan_;
    plan.recompute.blocks.assign(plan.model.model.blocks.size(), true);
    offer(plan, "activation_checkpointing.granularity full");
  }

  void try_preset(const std::string& name, const Plan& plan) {
    const std::string text = "model.preset " + name;
    if (!offer(plan, text)) smaller_micro(plan, text + ", ");
  }

  const Plan& plan_;
  std::uint64_t available_;
  std::vector<std::string> found_;
};

}  // namespace

std::string MemoryEstimate::text() const {
  const auto in_bytes = [](std::int64_t count) {
    return text::bytes(static_cast<std::uint64_t>(count));
  };
  return fmt::format(
      "parameters {}, gradients {}, optimizer {}, activations {}, other {}{}",
      in_bytes(parameters),
      in_bytes(gradients),
      in_bytes(optimizer),
      unknown.empty() ? in_bytes(activations) : fmt::format("not predicted ({})", unknown),
      in_bytes(other),
      shared > 0 ? ", less " + in_bytes(shared) + " that two share" : "");
}

namespace {

// The estimate for a rank of a stage.
MemoryEstimate estimate_stage(const Plan& plan, int stage) {
  const std::int64_t n = plan.data_ranks, shards = plan.zero_stage >= 1 ? n : 1;
  const auto value = static_cast<std::int64_t>(size_of(plan.working));
  const auto sum = static_cast<std::int64_t>(size_of(plan.reduction.accumulate));
  const bool local = plan.reduction.locally();
  const double exchange = exchange_bytes(plan);
  MemoryEstimate out;
  std::map<std::int64_t, int> uses_of_size;
  const bool narrow_masters = plan.kept.masters != DType::F32;
  const bool masters =
      parallel::has_separate_masters(plan.working, plan.kept.masters, /*local_weights=*/false);
  bool narrow_states = false, gathers_codes = false;
  std::int64_t widest = 0, saved = 0, directions = 0, largest_whole = 0, largest = 0;
  std::int64_t sums = 0, in_rows = 0, largest_sum = 0;  // for gradients
  const bool lends = plan.accumulation == 1 && !(local && n > 1);
  const std::vector<Buffer> buffers = buffers_of(plan, stage);
  for (const Buffer& buffer : buffers) {
    out.parameters += weight_bytes(plan, buffer);
    gathers_codes = gathers_codes || buffer.gathers_codes;
    // A frozen parameter has only its working weights, which a save widens if it contains them.
    const bool own_masters = masters && buffer.trained;
    const bool in_saves = buffer.trained || saves_frozen(plan);
    out.optimizer += buffer.state_bytes + (own_masters ? 4 * buffer.owned : 0);
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
    uses_of_size[buffer.numel] += static_cast<int>(buffer.uses);
  }
  out.gradients = sums + in_rows;
  const int ranks = plan.data_ranks;
  for (const auto& [numel, uses] : uses_of_size)
    out.gradients +=
        parallel::in_flight(plan.reduction, ranks, numel, uses).bytes(plan.reduction, ranks, numel);
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
  out.other = kProcess + plan.beside;
  return out;
}

}  // namespace

MemoryEstimate estimate_memory(const Plan& plan) {
  MemoryEstimate most;
  for (int stage = 0; stage < plan.stages.stages; ++stage) {
    MemoryEstimate need = estimate_stage(plan, stage);
    if (stage == 0 || need.total() > most.total()) most = std::move(need);
  }
  return most;
}

std::int64_t checkpoint_bytes(const Plan& plan) {
  // Every rank's own error feedback, and the owners'; with local weights, two states of every rank.
  const ExchangeNeeds needs = exchange_needs(plan.config.optimizer);
  const std::int64_t of_rank = needs.local_weights ? 3 : needs.compressed ? 1 : 0;
  const std::int64_t errors =
      plan.data_ranks > 1 ? 4 * (of_rank * plan.data_ranks + (of_rank > 0)) : 0;
  std::int64_t bytes = 0;
  // Checkpoints contain fp32, whatever the dtypes of the run.
  const auto rule = make_rule(plan);
  const auto& frozen = plan.weight_layout.frozen;
  for (const auto& info : nn::parameters_of(plan.model.model)) {
    const bool trained = info->trainable && !(frozen && frozen(info->name));
    if (!trained && !saves_frozen(plan)) continue;
    bytes += (4 + errors) * info->numel();
    if (!trained) continue;
    bytes += state_bytes(*rule, *info, info->numel(), DType::F32, /*ranks=*/1, /*saved=*/true);
  }
  return bytes;
}

std::int64_t saving_bytes(const Plan& plan) {
  const CheckpointOptions& options = plan.config.checkpoint;
  // The last checkpoint, and that after a signal, are written directly from the tensors.
  const bool during = options.interval_s() || options.when().any() || options.keeps_best();
  // Of the ranks that share tokens, which hold the same data, the first writes.
  const std::int64_t writers = plan.ranks / plan.config.parallel.context.size;
  return plan.save_in_background && during ? checkpoint_bytes(plan) / writers : 0;
}

void save_as_memory_allows(Plan& plan, const MemoryEstimate& need, std::uint64_t available) {
  const std::int64_t copy = saving_bytes(plan);
  const auto all = static_cast<double>((need.total() + copy) * plan.ranks);
  const bool known = need.unknown.empty();
  if (known && all <= kUsable * static_cast<double>(available)) return;
  if (copy > 0) {
    plan.notes.push_back(fmt::format(
        "training waits while a checkpoint is written: {}a copy of {} a rank to write it from {}",
        known ? "" : "it is not known whether ",
        text::bytes(static_cast<std::uint64_t>(copy)),
        known ? "does not fit into memory"
              : "fits into memory, because the activations are not predicted"));
  }
  plan.save_in_background = false;
}

void recompute_what_memory_needs(Plan& plan, std::uint64_t available) {
  if (const std::string unknown = estimate_memory(plan).unknown; !unknown.empty()) {
    plan.notes.push_back(
        fmt::format("activation_checkpointing.granularity auto recomputes nothing: the activations "
                    "are not predicted ({})",
                    unknown));
    return;
  }
  auto& blocks = plan.recompute.blocks;
  for (std::size_t b = 1; b + 1 < blocks.size() && !fits(plan, available); ++b)
    blocks[b] = true;
}

std::vector<std::string> changes_that_fit(const Plan& plan, std::uint64_t available) {
  return Search(plan, available).run();
}

MemoryEstimate check_memory(const Plan& plan, std::uint64_t available) {
  MemoryEstimate need = estimate_memory(plan);
  if (fits(need, plan.ranks, available)) return need;
  const std::vector<std::string> changes = changes_that_fit(plan, available);
  throw Error(
      Error::Kind::Memory,
      fmt::format("{} a rank x {} {} = {} do not fit into {:.0f} % of the {} that are free ({})",
                  text::bytes(static_cast<std::uint64_t>(need.total())),
                  plan.ranks,
                  plan.ranks == 1 ? "rank" : "ranks",
                  text::bytes(static_cast<std::uint64_t>(need.total()) *
                              static_cast<std::uint64_t>(plan.ranks)),
                  100 * kUsable,
                  text::bytes(available),
                  need.text()),
      changes.empty() ? "use a machine with more memory"
                      : "one of these fits: " + text::join(changes, "; or "));
}

}  // namespace tessera::planner

// SPDX-License-Identifier: Apache-2.0
#include "tessera/predict/step_time.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/transports/shapes.h"
#include "tessera/comm/world.h"
#include "tessera/nn/expert_parallel.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/cost.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/probe_cache.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/predict/step_simulator.h"

namespace tessera::predict {
namespace {

using parallel::ActionKind;

bool is_product(ShapeClass shape) {
  return shape == ShapeClass::LargeProduct || shape == ShapeClass::TallProduct ||
         shape == ShapeClass::FewRows || shape == ShapeClass::Grouped;
}

/// The parts of a pass of one block.
struct PassTime {
  double products = 0, attention = 0, memory = 0, flops = 0;
  Transfer in_host, between;
  [[nodiscard]] double seconds() const {
    return products + attention + memory + in_host.seconds + between.seconds;
  }
  void add(const PassTime& other, double times) {
    products += times * other.products;
    attention += times * other.attention;
    memory += times * other.memory;
    flops += times * other.flops;
    in_host += other.in_host * times;
    between += other.between * times;
  }
};

PassTime time_of(const parallel::PassWork& work, const DescribedMachine& machine) {
  PassTime out;
  for (const ops::OpRow& row : work.operations) {
    double& part = is_product(row.shape_class)                ? out.products
                   : row.shape_class == ShapeClass::Attention ? out.attention
                                                              : out.memory;
    part += seconds(row, machine);
    out.flops += row.flops;
  }
  for (const comm::Posted& posted : work.posted) {
    const Transfer one = transfer(posted, machine);
    (one.bytes_between > 0 ? out.between : out.in_host) += one;
  }
  return out;
}

/// True if blocks gather their weights: from other ranks, or from a disk.
bool gathers(const parallel::Layout& layout) {
  return layout.zero_stage == 3 && (layout.shard_ranks > 1 || layout.weight_offload);
}

std::vector<BlockParts> elements_of(const planner::Plan& plan) {
  const parallel::Layout& layout = plan.layout();
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  std::unique_ptr<comm::World> world;
  nn::TensorParallel tensor;
  nn::ExpertParallel experts;
  const bool splits_layers = layout.grid.size() > 1;
  const mesh::Mesh mesh({.ep = layout.expert_ranks,
                         .cp = layout.context,
                         .tp_depth = of(layout.grid.depth),
                         .tp_row = of(layout.grid.row),
                         .tp_col = of(layout.grid.col)});
  if (mesh.size() > 1) {
    world = comm::shape_world(mesh, /*rank=*/0);
    const mesh::ExpertFold fold = layout.expert_fold();
    if (splits_layers)
      tensor = {world.get(), &world->group(mesh::AxisSet::tp()), layout.tensor_mode()};
    experts = {world.get(), &world->group(fold.ep), fold};
  }
  const parallel::ParameterRules& rules = plan.model().rules;
  const bool shards = gathers(layout);
  std::vector<BlockParts> out;
  for (const nn::BlockSpec& spec : plan.model().resolved.model.blocks) {
    BlockParts& block = out.emplace_back();
    for (const auto& declared : nn::declared_by(spec)) {
      Param param(declared);
      nn::place(param, splits_layers ? &tensor : nullptr, world ? &experts : nullptr);
      const std::vector<std::int64_t> shape = param.info().local_shape();
      const std::int64_t numel =
          std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
      const bool frozen = !declared->trainable || (rules.frozen && rules.frozen(declared->name));
      const bool sharded = shards && numel >= layout.persistence_threshold;
      for (BlockElements* const sum : {static_cast<BlockElements*>(&block), &block.experts}) {
        if (sum == &block.experts && !declared->stacked()) continue;
        sum->all += numel;
        if (!frozen) sum->trained += numel;
        if (sharded) sum->sharded += numel;
      }
    }
  }
  return out;
}

int states_of(const planner::Plan& plan) {
  const auto rule = planner::make_rule(plan.recipe());
  std::int64_t most = 0;
  int states = 0;
  for (const auto& info : nn::parameters_of(plan.model().resolved.model)) {
    if (info->numel() <= most) continue;
    most = info->numel();
    states = 0;
    for (const optim::StateSpec& state : rule->state(parallel::facts_of(*info)))
      states += state.extent == optim::Extent::Elements ? 1 : 0;
  }
  return states;
}

double bytes_of(std::int64_t numel, DType dtype) {
  return static_cast<double>(numel) * static_cast<double>(size_of(dtype));
}

/// The parts of a plan that a prediction reads, and its result.
class Prediction {
 public:
  Prediction(const planner::Plan& plan, const DescribedMachine& machine, WorkCache& cache)
      : plan_(plan),
        layout_(plan.layout()),
        machine_(with_threads(machine, layout_.threads)),
        work_(cache.work(plan)),
        elements_(cache.elements(plan)),
        states_(cache.states(plan)),
        micros_(static_cast<int>(std::max<std::int64_t>(layout_.accumulation, 1))),
        model_ranks_(static_cast<int>(layout_.grid.size()) * layout_.context) {
    data_ = place_of(layout_.data_ranks, model_ranks_, machine.rates.host_ranks);
    shards_ = place_of(layout_.shard_ranks, model_ranks_, machine.rates.host_ranks);
    // The data-parallel ranks that have the same experts: neighbours divide them.
    const int experts = std::max(1, layout_.expert_ranks), stride = model_ranks_ * experts;
    expert_data_ =
        place_of(std::max(1, layout_.data_ranks / experts), stride, machine.rates.host_ranks);
    expert_shards_ =
        place_of(std::max(1, layout_.shard_ranks / experts), stride, machine.rates.host_ranks);
  }

  StepTime run(bool tells_messages) {
    StepTimes times = step_times();
    const parallel::PipelineSchedule schedule =
        layout_.stages.stages > 1 ? layout_.pipeline_schedule() : parallel::PipelineSchedule{};
    const StepSimulation all = simulate_step(schedule, layout_.stages, micros_, times);
    StepTime out;
    out.overhead = machine_.step_overhead_s;
    out.seconds = all.end + out.overhead;
    const std::size_t worst = busiest(all);
    const StageTime& stage = all.stages[worst];
    split_busy(static_cast<int>(worst), out);
    out.weights = stage.weights;
    out.gradients = stage.gradients;
    out.update = stage.update;
    out.updated = stage.updated;
    out.bubble = stage.idle;
    if (layout_.stages.stages > 1) out.traffic["messages"] = message_;
    if (layout_.stages.stages > 1 && tells_messages) {
      times.message = nullptr;
      const StepSimulation free = simulate_step(schedule, layout_.stages, micros_, times);
      out.bubble = std::min(stage.idle, free.stages[busiest(free)].idle);
      out.messages = stage.idle - out.bubble;
    }
    out.disk = disk_;
    count_work(out);
    return out;
  }

 private:
  static std::size_t busiest(const StepSimulation& simulation) {
    std::size_t out = 0;
    for (std::size_t s = 1; s < simulation.stages.size(); ++s) {
      if (simulation.stages[s].busy > simulation.stages[out].busy) out = s;
    }
    return out;
  }

  StepTimes step_times() {
    StepTimes out;
    out.overlap_tax = machine_.overlap_tax;
    out.reduce_once = layout_.reduction_options().locally();
    passes_.resize(work_->size());
    for (std::size_t b = 0; b < work_->size(); ++b) {
      BlockTimes& block = out.blocks.emplace_back();
      for (const auto& [kind, work] : (*work_)[b]) {
        PassTime& pass = passes_[b][kind] = time_of(work, machine_);
        if (parallel::makes_gradients(kind)) pass.memory += accumulation_of((*elements_)[b]);
        (kind == ActionKind::Forward           ? block.forward
         : kind == ActionKind::BackwardWeights ? block.weights
                                               : block.inputs) += pass.seconds();
      }
      add_transfers(b, block);
      // The input of a block is written during its forward pass, and read during the backward pass
      // of the block after it.
      if (const double stored = stored_bytes(b); stored > 0) {
        block.forward = std::max(block.forward, disk().second.seconds(stored));
        block.inputs = std::max(block.inputs, disk().first.seconds(stored));
      }
      // The gradient of a block is written during the backward pass of the block before it, and
      // added to that of earlier micro-batches.
      if (const double sum = sum_on_disk(b); sum > 0) {
        const double moved = std::max(disk().second.seconds(sum),
                                      disk().first.seconds(sum * (micros_ - 1) / micros_));
        block.weights = std::max(block.weights, moved - block.inputs);
      }
    }
    for (int stage = 0; stage < layout_.stages.stages; ++stage)
      out.update.push_back(update_of(stage, out.blocks));
    if (layout_.stages.stages > 1) price_messages(out);
    return out;
  }

  // Seconds in which a rank's cores add a micro-batch's gradients to their sum, besides reading
  // those of other ranks; the mean over all micro-batches, of which the first ones are the sum.
  // Kernels of GPUs add them in the product itself.
  [[nodiscard]] double accumulation_of(const BlockParts& block) const {
    if (machine_.collectives != Collectives::Own) return 0;
    constexpr double kPasses = 3;  // both are read, and the sum is written
    const bool alone = layout_.data_ranks == 1 || layout_.reduction_options().locally();
    const double first = alone ? kPasses : 1.0;  // a sum of several ranks is written in any case
    const double numel = static_cast<double>(block.trained) / (alone ? 1 : layout_.data_ranks);
    const ops::OpRow row{
        .calls = 1,
        .bytes = (kPasses - first / micros_) * numel * static_cast<double>(size_of(layout_.sums)),
        .shape_class = ShapeClass::Elementwise};
    return row.bytes > 0 ? predict::seconds(row, machine_) : 0;
  }

  // Bytes of a block's input that rest on a disk.
  double stored_bytes(std::size_t b) {
    if (!layout_.activation_offload || !layout_.recompute.blocks.at(b)) return 0;
    const auto& blocks = plan_.model().probes.cache().training(
        {plan_.model().resolved.model, layout_, plan_.model().rules, plan_.data().sample},
        /*recompute=*/true,
        splits());
    return static_cast<double>(
        std::accumulate(blocks[b].stored.begin(), blocks[b].stored.end(), std::int64_t{0}));
  }

  // Bytes on the disk of a rank's part of a block's gradient.
  [[nodiscard]] double sum_on_disk(std::size_t b) const {
    if (!layout_.offload || !layout_.offload->gradients) return 0;
    const BlockParts& block = (*elements_)[b];
    const double experts = std::max(1, layout_.data_ranks / std::max(1, layout_.expert_ranks));
    const double bytes = bytes_of(block.others().trained, layout_.sums) / layout_.data_ranks +
                         bytes_of(block.experts.trained, layout_.sums) / experts;
    return bytes < static_cast<double>(layout_.disk.block_bytes) ? 0 : bytes;
  }

  // The transfers of a block's weights and gradients.
  void add_transfers(std::size_t b, BlockTimes& block) {
    const BlockParts& numel = (*elements_)[b];
    add_transfers(b, numel.others(), data_, shards_, block);
    if (numel.experts.all > 0) add_transfers(b, numel.experts, expert_data_, expert_shards_, block);
    if (on_disk(b, numel.sharded) > 0)
      block.gather += disk().first.seconds(on_disk(b, numel.sharded));
  }

  // Those of the parameters that the ranks of `data` have in common.
  void add_transfers(std::size_t b,
                     const BlockElements& numel,
                     const comm::GroupPlace& data,
                     const comm::GroupPlace& shards,
                     BlockTimes& block) {
    const parallel::ReductionOptions reduction = layout_.reduction_options();
    const DType sent = reduction.narrow() ? reduction.comm_dtype : reduction.accumulate;
    const double gradients = bytes_of(reduction.sent(numel.trained), sent);
    // Own transports exchange rounded values, which the receiver adds; rings add on the way.
    const bool exchange = machine_.collectives == Collectives::Own && reduction.narrow();
    const Transfer reduce =
        transfer(exchange ? comm::Kind::AllToAll : comm::Kind::ReduceScatter,
                 gradients,
                 sent,
                 data,
                 machine_,
                 layout_.reduction == parallel::Reduction::Once ? comm::Write::Store
                                                                : comm::Write::Accumulate);
    block.reduce += reduce.seconds;
    gradients_ += reduce * (reduction.locally() ? 1.0 : micros_);
    const std::int64_t whole = numel.trained - std::min(numel.trained, numel.sharded);
    const double width = layout_.trained_gather == parallel::GatherForm::Int8
                             ? 1.0
                             : static_cast<double>(size_of(layout_.working));
    const Transfer gather = transfer(comm::Kind::AllGather,
                                     width * static_cast<double>(numel.sharded),
                                     layout_.working,
                                     shards,
                                     machine_);
    block.gather += gather.seconds;
    if (numel.sharded > 0)
      weights_ += gather * parallel::gathers_of(/*sharded=*/true,
                                                static_cast<int>(b),
                                                static_cast<int>(work_->size()),
                                                micros_);
    const DType kept = layout_.zero_stage == 0 ? layout_.sums : layout_.working;
    const Transfer updated =
        transfer(comm::Kind::AllGather, bytes_of(whole, kept), kept, data, machine_);
    block.gather_updated += updated.seconds;
    weights_ += updated;
  }

  /// The rates of reads and writes.
  const std::pair<Rate, Rate>& disk() const {
    const auto tier = machine_.rates.tiers.find("disk");
    TESSERA_REQUIRE(tier != machine_.rates.tiers.end(),
                    Config,
                    fmt::format("{}: tiers.disk: the rates are missing, and {} rest on a disk",
                                machine_.name,
                                layout_.offload          ? "masters and states"
                                : layout_.weight_offload ? "weights"
                                                         : "activations"),
                    "tessera bench io DIR measures them; add tiers.disk with read and write to the "
                    "machine's file");
    return tier->second;
  }
  /// Bytes on the disk of a rank's part of `numel` weights of a block.
  [[nodiscard]] double on_disk(std::size_t b, std::int64_t numel) const {
    if (!layout_.weight_offload) return 0;
    std::int64_t before = 0;  // with the block
    for (std::size_t i = 0; i <= b; ++i)
      before += (*elements_)[i].sharded;
    if (before <= layout_.weight_offload->in_memory) return 0;
    return bytes_of(numel, layout_.working) / layout_.shard_ranks;
  }

  double update_of(int stage, const std::vector<BlockTimes>& blocks) {
    const double ranks = layout_.zero_stage > 0 ? layout_.data_ranks : 1,
                 of_experts = std::max(1.0, ranks / std::max(1, layout_.expert_ranks));
    double others = 0, experts = 0;
    double weights = 0, sums = 0;  // bytes that rest on a disk
    double backward = 0;           // seconds of a micro-batch
    for (int chunk = 0; chunk < layout_.stages.chunks; ++chunk) {
      const auto [first, last] =
          layout_.stages.blocks(stage, chunk, static_cast<int>(elements_->size()));
      for (int b = first; b < last; ++b) {
        const BlockParts& block = (*elements_)[static_cast<std::size_t>(b)];
        others += static_cast<double>(block.others().trained);
        experts += static_cast<double>(block.experts.trained);
        weights += on_disk(static_cast<std::size_t>(b), std::min(block.sharded, block.trained));
        sums += sum_on_disk(static_cast<std::size_t>(b));
        const BlockTimes& times = blocks[static_cast<std::size_t>(b)];
        backward += times.inputs + times.weights;
      }
    }
    const double numel = others / ranks + experts / of_experts;
    Machine memory = machine_.rates;
    memory.memory.bytes_per_s *= machine_.memory_shares(ShapeClass::Update).at(4 * numel);
    const double computed = parallel::update_seconds(
        static_cast<std::int64_t>(numel), states_, layout_.working, memory);
    if (!layout_.rests_on_disk()) return computed;
    const double states =
        layout_.offload ? 4.0 * (1 + states_) * layout_.offload->share * numel : 0;
    const double bytes = states + weights;
    double moved = std::max(disk().first.seconds(bytes + sums), disk().second.seconds(bytes));
    // Streamed updates travel beside the backward pass of the last micro-batch.
    if (layout_.streamed_updates) moved = std::max(0.0, moved - backward);
    disk_ = std::max(disk_, std::max(0.0, moved - computed));
    return std::max(computed, moved);
  }

  // Stages are neighbours in the order of ranks, `stride` apart.
  void price_messages(StepTimes& times) {
    const int stride = model_ranks_ * layout_.data_ranks;
    const int host = machine_.rates.host_ranks;
    const bool same_host = host == 0 || stride * layout_.stages.stages <= host;
    const double bytes = flow_bytes();
    const Transfer one = message(bytes, same_host, machine_);
    message_ = one * (2.0 * micros_ * layout_.stages.chunks);
    times.message = [seconds = one.seconds](int, int, int, bool) { return seconds; };
  }

  // The largest flow between two blocks; those between layers are all alike.
  double flow_bytes() {
    const bool recompute = !layout_.recompute.blocks.empty() && layout_.recompute.blocks.back();
    const auto& blocks = plan_.model().probes.cache().training(
        {plan_.model().resolved.model, layout_, plan_.model().rules, plan_.data().sample},
        recompute,
        splits());
    std::int64_t most = 0;
    for (const int bound : layout_.stages.bounds) {
      if (bound > 0 && bound < static_cast<int>(blocks.size()))
        most = std::max(most, blocks[static_cast<std::size_t>(bound)].flow);
    }
    const double parts = layout_.scatter_gather && !layout_.sequence
                             ? static_cast<double>(layout_.grid.size())
                             : 1.0;
    return static_cast<double>(most) / parts;
  }
  [[nodiscard]] bool splits() const { return (*work_)[0].contains(ActionKind::BackwardInputs); }

  // Splits the computation of the stage by its parts.
  void split_busy(int stage, StepTime& out) {
    PassTime sum;
    for (int chunk = 0; chunk < layout_.stages.chunks; ++chunk) {
      const auto [first, last] =
          layout_.stages.blocks(stage, chunk, static_cast<int>(passes_.size()));
      for (int b = first; b < last; ++b) {
        for (const auto& [kind, pass] : passes_[static_cast<std::size_t>(b)])
          sum.add(pass, micros_);
      }
    }
    out.products = sum.products;
    out.attention = sum.attention;
    out.memory = sum.memory;
    out.layers_in_host = sum.in_host.seconds;
    out.layers_between = sum.between.seconds;
    Transfer layers = sum.in_host;
    layers += sum.between;
    const auto add = [&](const char* name, const Transfer& moved) {
      if (moved.bytes_in_host + moved.bytes_between > 0) out.traffic[name] = moved;
    };
    add("layers", layers);
    add("weights", weights_);
    add("gradients", gradients_);
  }

  void count_work(StepTime& out) {
    const double margin = machine_.uncertainty * out.seconds;
    out.low = out.seconds - margin;
    out.high = out.seconds + margin;
    out.tokens = layout_.micro_batch * micros_ * layout_.data_ranks * plan_.data().sequence_length;
    out.model_flops = flops_of_token(plan_) * static_cast<double>(out.tokens);
    double flops = 0;
    for (const auto& block : passes_) {
      for (const auto& [kind, pass] : block)
        flops += pass.flops;
    }
    out.hardware_flops = flops * micros_ * layout_.data_ranks * model_ranks_;
    const auto peak = machine_.peak.find(layout_.working);
    if (peak == machine_.peak.end()) return;
    const double most = peak->second * layout_.ranks() * out.seconds;
    out.mfu = out.model_flops / most;
    out.hfu = out.hardware_flops / most;
  }

  const planner::Plan& plan_;
  const parallel::Layout& layout_;
  DescribedMachine machine_;
  WorkCache::Work work_;
  WorkCache::Elements elements_;
  int states_, micros_, model_ranks_;
  comm::GroupPlace data_, shards_, expert_data_, expert_shards_;
  std::vector<std::map<ActionKind, PassTime>> passes_;
  Transfer weights_, gradients_, message_;
  double disk_ = 0;
};

std::string key_of(const planner::Plan& plan) {
  const parallel::Layout& layout = plan.layout();
  std::string blocks;
  for (const bool again : layout.recompute.blocks)
    blocks += again ? '1' : '0';
  return fmt::format("{} {} {}x{}x{} {} {} {} {} {} {} {} {} {} {}:{}:{}",
                     layout.micro_batch,
                     layout.threads,
                     layout.grid.depth,
                     layout.grid.row,
                     layout.grid.col,
                     static_cast<int>(layout.tensor),
                     layout.sequence,
                     layout.context,
                     static_cast<int>(layout.context_mode),
                     static_cast<int>(layout.working),
                     layout.recompute.regions,
                     blocks,
                     plan.data().sequence_length,
                     layout.stages.stages > 1 ? layout.schedule : "",
                     layout.expert_ranks,
                     layout.expert_fold().ep.bits(),
                     layout.expert_fold().etp.bits());
}

}  // namespace

double seconds(const ops::OpRow& row, const DescribedMachine& machine) {
  const double calls = std::max<double>(static_cast<double>(row.calls), 1);
  double arithmetic = 0;
  if (const Curve* const share = machine.shares(row.dtype, row.shape_class);
      share != nullptr && row.flops > 0) {
    const auto peak = machine.peak.find(row.dtype);
    TESSERA_REQUIRE(peak != machine.peak.end(),
                    Config,
                    fmt::format("{}: flops_per_s has no rate for {}, in which {} computes",
                                machine.name,
                                tessera::name(row.dtype),
                                row.name),
                    "add it to the machine's file; tessera bench machine measures this machine");
    arithmetic = row.flops / (peak->second * share->at(row.flops / calls));
  }
  const double bytes = row.bytes / machine.memory_shares(row.shape_class).at(row.bytes / calls);
  return std::max(arithmetic, machine.rates.memory.seconds(bytes, calls)) +
         machine.rates.op_overhead_s * calls;
}

WorkCache::Work WorkCache::work(const planner::Plan& plan) {
  const std::string key = key_of(plan);
  const std::scoped_lock lock(mutex_);
  Work& known = works_[key];
  if (!known)
    known = std::make_shared<const std::vector<parallel::BlockWork>>(planner::predict_work(plan));
  return known;
}

WorkCache::Elements WorkCache::elements(const planner::Plan& plan) {
  const parallel::Layout& layout = plan.layout();
  const bool shards = gathers(layout);
  const std::string key = fmt::format("{}x{}x{} {} {} {} {}:{}:{}",
                                      layout.grid.depth,
                                      layout.grid.row,
                                      layout.grid.col,
                                      static_cast<int>(layout.tensor),
                                      shards ? layout.persistence_threshold : -1,
                                      layout.context,
                                      layout.expert_ranks,
                                      layout.expert_fold().ep.bits(),
                                      layout.expert_fold().etp.bits());
  const std::scoped_lock lock(mutex_);
  Elements& known = elements_[key];
  if (!known) known = std::make_shared<const std::vector<BlockParts>>(elements_of(plan));
  return known;
}

int WorkCache::states(const planner::Plan& plan) {
  const std::scoped_lock lock(mutex_);
  if (states_ < 0) states_ = states_of(plan);
  return states_;
}

StepTime predict_step(const planner::Plan& plan, const DescribedMachine& machine) {
  WorkCache cache;
  return predict_step(plan, machine, cache);
}

StepTime predict_step(const planner::Plan& plan,
                      const DescribedMachine& machine,
                      WorkCache& cache,
                      bool tells_messages) {
  TESSERA_REQUIRE(!plan.data().sample.empty(),
                  Unsupported,
                  "the time of a step is not predicted: the tensors of a sample are known once the "
                  "data is open",
                  "tessera bench step measures it");
  return Prediction(plan, machine, cache).run(tells_messages);
}

double flops_of_token(const planner::Plan& plan) {
  const models::Resolved& model = plan.model().resolved;
  double parameters = 0;
  int tables = 0;
  for (const auto& info : nn::parameters_of(model.model)) {
    // A table that is only looked up takes part in no product.
    const bool looked_up = info->role == Role::TokenTable && !info->tied && tables++ == 0;
    if (!looked_up) parameters += static_cast<double>(info->numel());
  }
  parameters -= static_cast<double>(model.inactive_parameters);
  const double attention = static_cast<double>(model.num_layers) *
                           static_cast<double>(model.hidden_size) *
                           static_cast<double>(plan.data().sequence_length);
  return 6 * parameters + 12 * attention;
}

Bill bill_of(const StepTime& time, double steps, int ranks, double price_per_hour) {
  Bill out;
  out.steps = steps;
  out.tokens = steps * static_cast<double>(time.tokens);
  const double seconds = steps * time.seconds;
  out.days = seconds / 86400;
  out.rank_hours = seconds * ranks / 3600;
  out.price = out.rank_hours * price_per_hour;
  return out;
}

}  // namespace tessera::predict

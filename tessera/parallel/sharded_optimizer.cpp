// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/sharded_optimizer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {
namespace {

/// Work of a transform, for the balance: products of a matrix with its own transpose.
double cost(const optim::ParamFacts& facts) {
  return static_cast<double>(facts.numel()) *
         static_cast<double>(std::min(facts.rows, facts.columns));
}

std::int64_t extent_of(const optim::StateSpec& state, const optim::ParamFacts& facts) {
  return state.extent == optim::Extent::Rows ? facts.rows : facts.columns;
}

checkpoint::PieceBytes beginning_piece(std::string_view parameter, double& updates) {
  const Shape one = {1};
  return {beginning_of(parameter),
          DType::F64,
          one,
          {mesh::whole(one), 0, 1},
          std::as_writable_bytes(std::span(&updates, 1))};
}

}  // namespace

optim::ParamFacts facts_of(const ParamInfo& info) {
  const Shape& shape = info.matrix_shape.empty() ? info.shape : info.matrix_shape;
  optim::ParamFacts facts;
  facts.name = info.name;
  facts.matrix = shape.size() >= 2;
  facts.columns = shape.empty() ? 1 : shape.back();
  facts.rows = facts.columns == 0 ? 1 : info.numel() / facts.columns;
  facts.embedding = facts.matrix && info.role != Role::Matrix && info.role != Role::Vector;
  return facts;
}

std::string beginning_of(std::string_view parameter) {
  return fmt::format("optimizer.began.{}", parameter);
}

std::int64_t updates_in(const checkpoint::Meta& meta) {
  const json::Value* skipped = meta.extra.find("skipped");
  return meta.step - (skipped == nullptr ? 0 : skipped->as_integer().value_or(0));
}

std::int64_t updates_before(const checkpoint::Checkpoint& checkpoint, std::string_view parameter) {
  if (!checkpoint.has(beginning_of(parameter))) return 0;
  double updates = 0;
  const checkpoint::PieceBytes piece = beginning_piece(parameter, updates);
  checkpoint.load({&piece, 1});
  const std::int64_t made = updates_in(checkpoint.meta());
  TESSERA_REQUIRE(
      updates >= 0 && updates <= static_cast<double>(made) && std::floor(updates) == updates,
      Format,
      fmt::format("{}: {} is {}, and {} updates were made",
                  checkpoint.folder().string(),
                  piece.name,
                  updates,
                  made),
      "the checkpoint is damaged: take another");
  return static_cast<std::int64_t>(updates);
}

ShardedOptimizer::ShardedOptimizer(comm::World& world,
                                   ModelInstance& model,
                                   const optim::Rule& rule,
                                   int stage,
                                   ParamSettings settings,
                                   KeptTypes kept)
    : world_(world),
      model_(model),
      group_(world.group(mesh::AxisSet::dp())),
      rule_(rule),
      stage_(group_.size() == 1 ? 0 : stage),
      settings_(std::move(settings)),
      kept_(kept) {
  TESSERA_ASSERT(kept_.masters == DType::F32 || kept_.masters == model_.working());
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  if (const auto* rule_of_signs = rule.compressed()) {
    TESSERA_ASSERT(model_.tensor_parallel() == nullptr && model_.context_parallel() == nullptr);
    TESSERA_ASSERT(stage_ <= (rule_of_signs->local_weights() ? 0 : 1));
    compressed_ = std::make_unique<CompressedState>(world_, model_, *rule_of_signs);
  }
  slots_.resize(model_.groups().size());
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    FlatGroup& group = model_.groups()[g];
    Slot& slot = slots_[g];
    slot.begin = stage_ == 0 ? 0 : group.layout.shard_begin(group_.index);
    slot.numel = stage_ == 0 ? group.layout.numel() : group.layout.shard_numel();
    TESSERA_ASSERT(group.weights.own().numel() == slot.numel);
    if (model_.working() == DType::F32 && !local_weights()) {
      slot.master = group.weights.own().data_ptr<float>();
    } else if (kept_.masters == DType::F32) {
      slot.master_storage = at::zeros({slot.numel}, at::kFloat);
      slot.master = slot.master_storage.data_ptr<float>();
    }
    make_parts(g);
  }
  assign_owners();
}

ShardedOptimizer::~ShardedOptimizer() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    wait_weights();
  } catch (const Error&) {
    // The world is broken: whoever broke it has told why.
  }
}

void ShardedOptimizer::make_parts(std::size_t g) {
  const FlatGroup& group = model_.groups()[g];
  Slot& slot = slots_[g];
  for (std::size_t s = 0; s < group.layout.segments().size(); ++s) {
    const Segment& segment = group.layout.segments()[s];
    const optim::ParamFacts facts = facts_of(*segment.info);
    const optim::Scope scope = rule_.scope(facts);
    if (group.trainable && scope != optim::Scope::Elementwise) elementwise_ = false;
    if (group.trainable && scope == optim::Scope::WholeTensor)
      wholes_.push_back({static_cast<int>(g), static_cast<int>(s), 0, {}, {}, facts});
    const Segment range = segment.within(slot.begin, slot.begin + slot.numel);
    if (range.numel == 0) continue;
    Part part;
    part.segment = &segment;
    part.group = static_cast<int>(g);
    part.segment_index = static_cast<int>(s);
    part.at = range.begin - slot.begin;
    part.first = range.begin - segment.begin;
    part.numel = range.numel;
    part.facts = facts;
    part.setting = settings_(*segment.info);
    if (group.trainable) {
      for (const optim::StateSpec& state : rule_.state(facts)) {
        if (state.extent == optim::Extent::Elements)
          part.state.push_back(new_state(part, part.state.size(), state.name));
      }
    }
    slot.parts.push_back(std::move(part));
  }
}

/// The heaviest first, each to the rank that has least to do: the same on every rank.
void ShardedOptimizer::assign_owners() {
  std::vector<std::size_t> order(wholes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return cost(wholes_[a].facts) > cost(wholes_[b].facts);
  });
  std::vector<double> load(static_cast<std::size_t>(group_.size()), 0.0);
  for (const std::size_t i : order) {
    Whole& whole = wholes_[i];
    const auto least = std::min_element(load.begin(), load.end());
    whole.owner = static_cast<int>(least - load.begin());
    *least += cost(whole.facts);
    if (!owns(whole)) continue;
    for (const optim::StateSpec& state : rule_.state(whole.facts)) {
      if (state.extent != optim::Extent::Elements)
        whole.state.push_back(at::zeros({extent_of(state, whole.facts)}, at::kFloat));
    }
  }
}

void ShardedOptimizer::wait_weights() {
  for (FlatGroup& group : model_.groups())
    group.weights.settle();
}

void ShardedOptimizer::fill(const FillRange& source) {
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    model_.groups()[g].weights.begin_write();
    for (const Part& part : slots_[g].parts) {
      const std::int64_t end = part.first + part.numel;
      if (slots_[g].master != nullptr) {
        fill_held(source, *part.segment->info, part.first, end, slots_[g].master + part.at);
        continue;
      }
      const at::Tensor wide = at::empty({part.numel}, at::kFloat);
      fill_held(source, *part.segment->info, part.first, end, wide.data_ptr<float>());
      model_.groups()[g].weights.own().narrow(0, part.at, part.numel).copy_(wide);
    }
  }
  publish();
}

/// Working weights from the masters.
void ShardedOptimizer::publish() {
  for (FlatGroup& group : model_.groups())
    group.weights.begin_write();
  for (const auto& [wide, narrow] : widened_)
    narrow.copy_(wide);
  widened_.clear();
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    WorkingWeights& weights = model_.groups()[g].weights;
    publish_group(g);
    weights.written();
  }
}

void ShardedOptimizer::publish_group(std::size_t g) {
  const at::Tensor& own = model_.groups()[g].weights.own();
  if (slots_[g].master_storage.defined()) own.copy_(slots_[g].master_storage);
  if (!local_weights() || !model_.groups()[g].trainable) return;
  for (const Part& part : slots_[g].parts) {
    const at::Tensor master = slots_[g].master_storage.narrow(0, part.at, part.numel);
    own.narrow(0, part.at, part.numel).copy_(master + part.state.front());
  }
}

/// What the run that saved it did not keep (of parameters that it did not train, of momentum that
/// it had none of) starts as in a first step.
void ShardedOptimizer::load(const checkpoint::Checkpoint& checkpoint) {
  std::vector<checkpoint::PieceBytes> wanted = pieces(/*for_save=*/false);
  std::erase_if(wanted, [&](const checkpoint::PieceBytes& piece) {
    if (!piece.name.starts_with("optimizer.") || checkpoint.has(piece.name)) return false;
    checkpoint.require_whole();
    std::fill(piece.bytes.begin(), piece.bytes.end(), std::byte{0});
    return true;
  });
  checkpoint.load(wanted);
  if (compressed_) compressed_->load(checkpoint);
  load_beginnings(checkpoint);
  publish();
}

/// Compressed rules count the phases of the whole training; and a host's part of a save does not
/// tell what the others hold.
void ShardedOptimizer::load_beginnings(const checkpoint::Checkpoint& checkpoint) {
  beginnings_.clear();
  if (compressed_ || checkpoint.save_id() != 0) return;
  for (const FlatGroup& group : model_.groups()) {
    for (const Segment& segment : group.layout.segments()) {
      const std::string& name = segment.info->name;
      const auto states = rule_.state(facts_of(*segment.info));
      if (!group.trainable || states.empty()) continue;
      const bool anew = std::none_of(states.begin(), states.end(), [&](const auto& state) {
        return checkpoint.has(fmt::format("optimizer.{}.{}", state.name, name));
      });
      const std::int64_t updates =
          anew ? updates_in(checkpoint.meta()) : updates_before(checkpoint, name);
      if (updates > 0) beginnings_[name] = static_cast<double>(updates);
    }
  }
}

/// On the first of the ranks that know them.
void ShardedOptimizer::add_beginnings(std::vector<checkpoint::PieceBytes>& out) {
  const nn::TensorParallel* const tensor = model_.tensor_parallel();
  if (group_.index > 0 || (tensor != nullptr && tensor->group->index > 0)) return;
  for (const FlatGroup& group : model_.groups()) {
    for (const Segment& segment : group.layout.segments()) {
      const auto found = beginnings_.find(segment.info->name);
      if (group.counted && found != beginnings_.end())
        out.push_back(beginning_piece(found->first, found->second));
    }
  }
}

optim::UpdateScalars ShardedOptimizer::scalars_of(const optim::ParamFacts& facts,
                                                  optim::UpdateScalars scalars) const {
  const auto found = beginnings_.find(facts.name);
  if (found != beginnings_.end()) scalars.step -= static_cast<std::int64_t>(found->second);
  return scalars;
}

at::Tensor ShardedOptimizer::gradient(GradientFold& gradients, std::size_t group) {
  const int g = static_cast<int>(group);
  return stage_ == 0 ? gradients.gather(g) : gradients.shard(g);
}

/// Of what is kept in 16 bits there is no pointer.
optim::ShardView ShardedOptimizer::view_of_part(Part& part, const float* gradient) {
  const auto g = static_cast<std::size_t>(part.group);
  optim::ShardView view;
  if (slots_[g].master != nullptr) view.master = slots_[g].master + part.at;
  view.grad = gradient;
  if (model_.working() != DType::F32) {
    view.working =
        static_cast<std::uint16_t*>(model_.groups()[g].weights.own().data_ptr()) + part.at;
    view.working_dtype = model_.working();
  }
  for (const at::Tensor& state : part.state)
    view.state.push_back(state.scalar_type() == at::kFloat ? state.data_ptr<float>() : nullptr);
  view.numel = part.numel;
  view.decay = part.setting.decay;
  view.lr_scale = part.setting.lr_scale;
  view.weight_decay = part.setting.weight_decay;
  view.facts = &part.facts;
  view.norms = part.norms;
  view.direction = part.direction.defined() ? part.direction.data_ptr<float>() : nullptr;
  return view;
}

class ShardedOptimizer::Wide {
 public:
  Wide(ShardedOptimizer& optimizer, Part& part, const float* gradient)
      : part_(part), view_(optimizer.view_of_part(part, gradient + part.at)) {
    if (view_.master == nullptr) {
      const FlatGroup& group = optimizer.model_.groups()[static_cast<std::size_t>(part.group)];
      master_ = group.weights.own().narrow(0, part.at, part.numel).to(at::kFloat);
      view_.master = master_.data_ptr<float>();
    }
    for (std::size_t s = 0; s < part.state.size(); ++s) {
      states_.push_back(part.state[s].to(at::kFloat));
      view_.state[s] = states_.back().data_ptr<float>();
    }
  }
  [[nodiscard]] const optim::ShardView& view() const { return view_; }
  /// The states that the rule moved. Weights it rounds itself.
  void keep() {
    for (std::size_t s = 0; s < states_.size(); ++s) {
      if (!states_[s].is_same(part_.state[s])) part_.state[s].copy_(states_[s]);
    }
  }

 private:
  Part& part_;
  at::Tensor master_;
  std::vector<at::Tensor> states_;
  optim::ShardView view_;
};

void ShardedOptimizer::update(GradientFold& gradients, const optim::UpdateScalars& scalars) {
  if (compresses(scalars.step)) {
    update_compressed(gradients, scalars);
    return;
  }
  if (!elementwise_) {
    prepare(gradients, scalars);
    transform(scalars);
  }
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    if (model_.groups()[g].trainable) update_group(g, gradients, scalars);
  }
}

void ShardedOptimizer::update_group(std::size_t g,
                                    GradientFold& gradients,
                                    const optim::UpdateScalars& scalars) {
  WorkingWeights& weights = model_.groups()[g].weights;
  weights.begin_write();
  const at::Tensor grad = gradient(gradients, g);
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  for (Part& part : slots_[g].parts) {
    if (compressed_) {
      CompressedState::Tensor& tensor = compressed_->tensor(part.group, part.segment_index);
      compressed_->rule().adapt(tensor.scalars, part.norms, scalars);
    }
    Wide wide(*this, part, grad.const_data_ptr<float>());
    rule_.update(wide.view(), scalars_of(part.facts, scalars));
    wide.keep();
    part.direction.reset();
    part.norms.clear();
  }
  if (local_weights()) publish_group(g);
  weights.written();
}

/// First pass over all parameters that are not updated element by element: states, sums,
/// directions.
void ShardedOptimizer::prepare(GradientFold& gradients, const optim::UpdateScalars& scalars) {
  // Every sum has one place, the same on all ranks: (group, segment, norm, chunk).
  std::vector<std::int64_t> offsets;
  std::int64_t total = 0;
  for (const FlatGroup& group : model_.groups()) {
    for (const Segment& segment : group.layout.segments()) {
      offsets.push_back(total);
      if (group.trainable)
        total += rule_.num_norms(facts_of(*segment.info)) * chunks_of(segment.numel);
    }
  }
  std::vector<double> sums(static_cast<std::size_t>(total), 0.0);
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  std::size_t first_offset = 0;
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    const FlatGroup& group = model_.groups()[g];
    if (group.trainable) {
      const at::Tensor grad = gradient(gradients, g);
      for (Part& part : slots_[g].parts) {
        const optim::Scope scope = rule_.scope(part.facts);
        if (scope == optim::Scope::Elementwise) continue;
        if (scope == optim::Scope::WholeTensor)
          part.direction = at::empty({part.numel}, at::kFloat);
        const std::int64_t norms = rule_.num_norms(part.facts), mine = chunks_of(part.numel);
        std::vector<double> own(static_cast<std::size_t>(norms * mine), 0.0);
        Wide wide(*this, part, grad.const_data_ptr<float>());
        rule_.prepare(wide.view(), scalars_of(part.facts, scalars), own.data());
        wide.keep();
        const std::int64_t chunks = chunks_of(part.segment->numel);
        const std::int64_t offset =
            offsets[first_offset + static_cast<std::size_t>(part.segment_index)];
        for (std::int64_t k = 0; k < norms; ++k) {
          std::copy_n(own.begin() + k * mine,
                      mine,
                      sums.begin() + offset + k * chunks + part.first / kChunk);
        }
      }
    }
    first_offset += group.layout.segments().size();
  }
  fold_norms(std::move(sums), offsets);
}

/// A sum is written by one rank and zero elsewhere, so adding the ranks' is exact; chunks are then
/// added in their order.
void ShardedOptimizer::fold_norms(std::vector<double> sums,
                                  const std::vector<std::int64_t>& offsets) {
  if (sums.empty()) return;
  if (stage_ > 0) {
    sums = world_.all_reduce(
        group_, std::move(sums), comm::Op::Sum, TESSERA_HERE("sums of the optimizer's norms"));
  }
  // Of each (segment, norm): its chunks' sums.
  std::vector<double> totals;
  std::vector<const ParamInfo*> of;
  std::vector<std::size_t> first_of_group, first_total;
  for (const FlatGroup& group : model_.groups()) {
    first_of_group.push_back(first_total.size());
    for (const Segment& segment : group.layout.segments()) {
      const std::int64_t offset = offsets[first_total.size()], chunks = chunks_of(segment.numel);
      first_total.push_back(totals.size());
      if (!group.trainable) continue;
      for (std::int64_t k = 0; k < rule_.num_norms(facts_of(*segment.info)); ++k) {
        const auto first = sums.begin() + offset + k * chunks;
        totals.push_back(std::accumulate(first, first + chunks, 0.0));
        of.push_back(segment.info.get());
      }
    }
  }
  add_boxes(totals, of);
  const auto norms_of = [&](std::size_t place, const optim::ParamFacts& facts) {
    std::vector<double> norms;
    for (std::int64_t k = 0; k < rule_.num_norms(facts); ++k)
      norms.push_back(std::sqrt(totals[first_total[place] + static_cast<std::size_t>(k)]));
    return norms;
  };
  for (Slot& slot : slots_) {
    for (Part& part : slot.parts) {
      if (!model_.groups()[static_cast<std::size_t>(part.group)].trainable) continue;
      part.norms = norms_of(first_of_group[static_cast<std::size_t>(part.group)] +
                                static_cast<std::size_t>(part.segment_index),
                            part.facts);
    }
  }
  for (Whole& whole : wholes_) {
    whole.norms = norms_of(first_of_group[static_cast<std::size_t>(whole.group)] +
                               static_cast<std::size_t>(whole.segment),
                           whole.facts);
  }
}

/// Those of parameters that tensor-parallel ranks hold in boxes; what several ranks have counts
/// once.
void ShardedOptimizer::add_boxes(std::vector<double>& totals,
                                 const std::vector<const ParamInfo*>& of) {
  const nn::TensorParallel* const tensor = model_.tensor_parallel();
  if (tensor == nullptr) return;
  std::vector<double> sums = totals;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (of[i]->copy) sums[i] = 0.0;
  }
  sums = world_.all_reduce(*tensor->group,
                           std::move(sums),
                           comm::Op::Sum,
                           TESSERA_HERE("sums of the optimizer's norms"));
  for (std::size_t i = 0; i < totals.size(); ++i) {
    if (of[i]->cut()) totals[i] = sums[i];
  }
}

/// What stands for `narrow` in pieces(): itself where it is fp32.
float* ShardedOptimizer::wide_copy(const at::Tensor& narrow) {
  if (narrow.scalar_type() == at::kFloat) return narrow.data_ptr<float>();
  widened_.emplace_back(narrow.to(at::kFloat), narrow);
  return widened_.back().first.data_ptr<float>();
}

std::vector<checkpoint::PieceBytes> ShardedOptimizer::pieces(bool for_save) {
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  widened_.clear();
  std::vector<checkpoint::PieceBytes> out;
  // Ranks that share tokens hold the same.
  const nn::ContextParallel* const context = model_.context_parallel();
  if (for_save && context != nullptr && context->group->index > 0) return out;
  const auto bytes = [](float* base, std::int64_t numel) {
    return std::span<std::byte>(reinterpret_cast<std::byte*>(base),
                                static_cast<std::size_t>(numel) * sizeof(float));
  };
  const nn::TensorParallel* const tensor = model_.tensor_parallel();
  const bool first_holder = tensor == nullptr || tensor->group->index == 0;
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    if (for_save && !model_.groups()[g].counted) continue;  // another stage's
    Slot& slot = slots_[g];
    const FlatLayout& layout = model_.groups()[g].layout;
    // A replicated state is still written once: every rank writes its shard of it.
    const std::int64_t begin = for_save ? layout.shard_begin(group_.index) : slot.begin;
    const std::int64_t end = for_save ? begin + layout.shard_numel() : slot.begin + slot.numel;
    float* const masters =
        slot.master != nullptr ? slot.master : wide_copy(model_.groups()[g].weights.own());
    for (Part& part : slot.parts) {
      const Segment range = part.segment->within(begin, end);
      if (range.numel == 0) continue;
      const ParamInfo& info = *part.segment->info;
      const std::int64_t first = range.begin - part.segment->begin, numel = range.numel;
      if (for_save && (info.cut() ? info.copy : !first_holder)) continue;
      const mesh::Piece piece{info.held(), first, first + numel};
      out.push_back({info.name,
                     DType::F32,
                     info.shape,
                     piece,
                     bytes(masters + part.at + (first - part.first), numel)});
      std::size_t s = 0;
      for (const optim::StateSpec& state : rule_.state(part.facts)) {
        if (state.extent != optim::Extent::Elements || part.state.empty()) continue;
        const std::size_t index = s++;
        if (stands_elsewhere(index, state.name, for_save)) continue;
        out.push_back({fmt::format("optimizer.{}.{}", state.name, info.name),
                       DType::F32,
                       info.shape,
                       piece,
                       bytes(wide_copy(part.state[index]) + (first - part.first), numel)});
      }
    }
  }
  for (Whole& whole : wholes_) {
    const bool counted = model_.groups()[static_cast<std::size_t>(whole.group)].counted;
    if (for_save ? whole.owner != group_.index || !counted || !first_holder : !owns(whole))
      continue;
    std::size_t s = 0;
    for (const optim::StateSpec& state : rule_.state(whole.facts)) {
      if (state.extent == optim::Extent::Elements) continue;
      const std::int64_t numel = extent_of(state, whole.facts);
      const Shape shape = {numel};
      out.push_back({fmt::format("optimizer.{}.{}", state.name, whole.facts.name),
                     DType::F32,
                     shape,
                     {mesh::whole(shape), 0, numel},
                     bytes(whole.state[s++].data_ptr<float>(), numel)});
    }
  }
  if (compressed_) add_compressed_pieces(out, for_save);
  if (for_save) add_beginnings(out);
  return out;
}

}  // namespace tessera::parallel

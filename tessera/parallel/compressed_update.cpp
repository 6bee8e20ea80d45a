// SPDX-License-Identifier: Apache-2.0
// The updates of compressed rules: what ShardedOptimizer does where ranks exchange signs.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/sharded_optimizer.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {

bool ShardedOptimizer::compresses(std::int64_t step) const {
  return compressed_ != nullptr && compressed_->rule().exchange(step) != optim::Exchange::Gradients;
}

/// Memory of a state. Of what is exchanged the shard is a view of the whole.
at::Tensor ShardedOptimizer::new_state(const Part& part,
                                       std::size_t index,
                                       const std::string& name) {
  if (!compressed_) return at::zeros({part.numel}, to_torch(kept_.states));
  at::Tensor state = index > 0 ? at::zeros({part.numel}, at::kFloat)
                               : compressed_->tensor(part.group, part.segment_index)
                                     .exchanged.narrow(0, part.first, part.numel);
  if (compressed_->rule().of_rank(name)) {
    compressed_->add_rank_state(name,
                                compressed_->tensor(part.group, part.segment_index),
                                state.data_ptr<float>(),
                                part.numel);
  }
  return state;
}

/// Whether a state is not among the pieces of the shards: it is of the rank, or read whole.
bool ShardedOptimizer::stands_elsewhere(std::size_t index,
                                        const std::string& state,
                                        bool for_save) {
  if (!compressed_) return false;
  return compressed_->rule().of_rank(state) || (index == 0 && !for_save);
}

void ShardedOptimizer::add_compressed_pieces(std::vector<checkpoint::PieceBytes>& out,
                                             bool for_save) {
  std::vector<bool> first_here;
  for (CompressedState::Tensor& tensor : compressed_->tensors()) {
    const ParamInfo& info = *tensor.place->info;
    const FlatLayout& layout = model_.groups()[static_cast<std::size_t>(tensor.group)].layout;
    const std::int64_t begin = layout.shard_begin(group_.index);
    first_here.push_back(tensor.counted && begin <= tensor.place->begin &&
                         tensor.place->begin < begin + layout.shard_numel());
    const std::string state = rule_.state(tensor.facts).front().name;
    if (for_save || compressed_->rule().of_rank(state)) continue;
    out.push_back({fmt::format("optimizer.{}.{}", state, info.name),
                   DType::F32,
                   info.shape,
                   {mesh::whole(info.shape), 0, info.numel()},
                   {static_cast<std::byte*>(tensor.exchanged.data_ptr()),
                    static_cast<std::size_t>(info.numel()) * sizeof(float)}});
  }
  if (for_save) compressed_->add_pieces(out, first_here);
}

/// The range of a part after the exchange.
optim::CompressedView ShardedOptimizer::compressed_view(Part& part) {
  // No rule reads a gradient any more; the functions of ops/ want something to read.
  optim::CompressedView view{view_of_part(part, part.state.front().const_data_ptr<float>())};
  view.scalars = compressed_->tensor(part.group, part.segment_index).scalars;
  view.last = std::exchange(view.direction, nullptr);
  return view;
}

/// A whole parameter, and this rank's own gradient of it.
optim::CompressedView ShardedOptimizer::whole_view(CompressedState::Tensor& tensor,
                                                   const at::Tensor& gradient) {
  optim::CompressedView view;
  if (local_weights()) {
    view = compressed_view(*part_of(tensor.group, tensor.segment));
  } else {
    view.state = {tensor.exchanged.data_ptr<float>()};
    view.numel = tensor.place->numel;
    view.facts = &tensor.facts;
    view.scalars = tensor.scalars;
  }
  view.grad = gradient.defined() ? gradient.const_data_ptr<float>() + tensor.place->begin : nullptr;
  return view;
}

void ShardedOptimizer::update_compressed(GradientFold& gradients, optim::UpdateScalars scalars) {
  const optim::CompressedRule& rule = compressed_->rule();
  // A rank's sum is its share of the gradient; as many times that, and the mean is the gradient.
  scalars.grad_scale *= group_.size();
  if (rule.forgets(scalars.step)) compressed_->forget();
  if (!compresses(scalars.step - 1)) start_compressed();
  make_vectors(gradients, scalars);
  if (rule.exchange(scalars.step) == optim::Exchange::Signs) compressed_->mean();
  for (CompressedState::Tensor& tensor : compressed_->tensors())
    rule.received(whole_view(tensor, {}));
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    if (model_.groups()[g].trainable) model_.groups()[g].weights.begin_write();
  }
  if (rule.num_measures() > 0) measure(scalars);
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    FlatGroup& group = model_.groups()[g];
    if (!group.trainable) continue;
    for (Part& part : slots_[g].parts) {
      rule.finish(compressed_view(part), scalars);
      part.direction.reset();
    }
    if (local_weights()) publish_group(g);
    group.weights.post();
  }
}

void ShardedOptimizer::start_compressed() {
  const optim::CompressedRule& rule = compressed_->rule();
  std::vector<at::Tensor> own;
  for (Slot& slot : slots_) {
    for (Part& part : slot.parts) {
      if (part.state.empty()) continue;
      own.push_back(part.state.front());
      rule.freeze(compressed_view(part));
    }
  }
  if (stage_ > 0) compressed_->gather(own);
  if (rule.fused()) compressed_->start();
}

void ShardedOptimizer::make_vectors(GradientFold& gradients, const optim::UpdateScalars& scalars) {
  const optim::CompressedRule& rule = compressed_->rule();
  if (rule.keeps_last()) {
    const memory::ScopedTag tag(memory::Tag::Optimizer);
    for (Slot& slot : slots_) {
      for (Part& part : slot.parts)
        part.direction = part.state.empty() ? at::Tensor() : part.state.front().clone();
    }
  }
  int group = -1;
  at::Tensor gradient;
  for (CompressedState::Tensor& tensor : compressed_->tensors()) {
    if (std::exchange(group, tensor.group) != tensor.group) gradient = gradients.own(tensor.group);
    rule.local(whole_view(tensor, gradient), scalars);
  }
}

/// Quantities of every whole parameter from those of its chunks, each of which one rank has and the
/// others leave zero.
void ShardedOptimizer::measure(const optim::UpdateScalars& scalars) {
  const optim::CompressedRule& rule = compressed_->rule();
  const std::int64_t kinds = rule.num_measures();
  std::vector<CompressedState::Tensor>& tensors = compressed_->tensors();
  std::vector<std::int64_t> offsets;
  std::int64_t total = 0;
  for (const CompressedState::Tensor& tensor : tensors) {
    offsets.push_back(total);
    total += kinds * chunks_of(tensor.place->numel);
  }
  std::vector<double> all(static_cast<std::size_t>(total), 0.0);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Part* const part = part_of(tensors[i].group, tensors[i].segment);
    if (part == nullptr) continue;
    const std::int64_t mine = chunks_of(part->numel), chunks = chunks_of(tensors[i].place->numel);
    std::vector<double> own(static_cast<std::size_t>(kinds * mine));
    rule.measure(compressed_view(*part), scalars, own.data());
    for (std::int64_t k = 0; k < kinds; ++k) {
      std::copy_n(own.begin() + k * mine,
                  mine,
                  all.begin() + offsets[i] + k * chunks + part->first / kChunk);
    }
  }
  if (stage_ > 0) {
    all = world_.all_reduce(
        group_, std::move(all), comm::Op::Sum, TESSERA_HERE("measures of the optimizer"));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t chunks = chunks_of(tensors[i].place->numel);
    std::vector<double> measures(static_cast<std::size_t>(kinds), 0.0);
    for (std::int64_t k = 0; k < kinds; ++k) {
      double& out = measures[static_cast<std::size_t>(k)];
      for (std::int64_t c = 0; c < chunks; ++c) {
        const double chunk = all[static_cast<std::size_t>(offsets[i] + k * chunks + c)];
        out = k + 1 < kinds ? out + chunk : std::max(out, chunk);
      }
      if (k + 1 < kinds) out = std::sqrt(out);
    }
    rule.adapt(tensors[i].scalars, measures, scalars);
  }
}

}  // namespace tessera::parallel

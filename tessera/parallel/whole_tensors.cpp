// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/whole_tensors.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/memory/ledger.h"
#include "tessera/parallel/assembled.h"
#include "tessera/parallel/param_facts.h"

namespace tessera::parallel {
namespace {

/// Message tags of an update: directions to their owners, and back.
constexpr int kToOwner = 0x6f70;
constexpr int kFromOwner = 0x6f71;

/// The cost of a transform: products of a matrix with its own transpose.
double cost(const optim::ParamFacts& facts) {
  return static_cast<double>(facts.numel()) *
         static_cast<double>(std::min(facts.rows, facts.columns));
}

/// Returns a view of the box.
comm::Span floats(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), DType::F32, {}};
}

}  // namespace

std::vector<int> balanced_owners(std::span<const double> costs, int ranks) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return costs[a] > costs[b];
  });
  std::vector<int> owners(costs.size());
  std::vector<double> load(static_cast<std::size_t>(ranks), 0.0);
  for (const std::size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owners[i] = static_cast<int>(least - load.begin());
    *least += costs[i];
  }
  return owners;
}

WholeTensors::WholeTensors(const UpdateContext& context) : context_(context) {
  for (std::size_t g = 0; g < context_.model.groups().size(); ++g) {
    const FlatGroup& group = context_.model.groups()[g];
    for (std::size_t s = 0; s < group.layout.segments().size() && group.trainable; ++s) {
      optim::ParamFacts facts = facts_of(*group.layout.segments()[s].info);
      if (context_.rule.scope(facts) == optim::Scope::WholeTensor)
        wholes_.push_back({static_cast<int>(g), static_cast<int>(s), 0, {}, std::move(facts)});
    }
  }
  assign_owners();
}

void WholeTensors::assign_owners() {
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  std::vector<double> costs;
  for (const Whole& whole : wholes_)
    costs.push_back(cost(whole.facts));
  const std::vector<int> owners = balanced_owners(costs, context_.group().size());
  for (std::size_t i = 0; i < wholes_.size(); ++i) {
    Whole& whole = wholes_[i];
    whole.owner = owners[i];
    if (!owns(whole)) continue;
    for (const optim::StateSpec& state : context_.rule.state(whole.facts)) {
      if (state.extent != optim::Extent::Elements)
        whole.state.push_back(at::zeros({state_numel(state, whole.facts, 0)}, at::kFloat));
    }
  }
}

comm::WorkPtr WholeTensors::send(int index,
                                 int tag,
                                 const at::Tensor& piece,
                                 const Whole& whole) const {
  return context_.world.transport().send(
      context_.group().ranks[static_cast<std::size_t>(index)],
      tag,
      floats(piece),
      TESSERA_HERE(fmt::format("direction of {}", whole.facts.name)));
}

void WholeTensors::receive(int index, int tag, const at::Tensor& piece, const Whole& whole) const {
  context_.world.transport()
      .recv(context_.group().ranks[static_cast<std::size_t>(index)],
            tag,
            floats(piece),
            TESSERA_HERE(fmt::format("direction of {}", whole.facts.name)))
      ->wait();
}

/// All directions are sent to their owners at once; each owner transforms its own in order and
/// sends the pieces back.
void WholeTensors::transform(ShardStore& store,
                             const ParameterNorms& norms,
                             const optim::UpdateScalars& scalars) {
  std::vector<comm::WorkPtr> sent;
  for (const Whole& whole : wholes_) {
    const ParamShard* shard = store.find(whole.group, whole.segment);
    if (shard != nullptr && !owns(whole))
      sent.push_back(send(whole.owner, kToOwner, shard->direction, whole));
  }
  for (Whole& whole : wholes_) {
    if (owns(whole)) transform_owned(whole, store, norms, scalars);
  }
  for (const Whole& whole : wholes_) {
    const ParamShard* shard = store.find(whole.group, whole.segment);
    if (shard != nullptr && !owns(whole)) receive(whole.owner, kFromOwner, shard->direction, whole);
  }
  for (const comm::WorkPtr& work : sent) {
    work->wait();
    work->wait_reusable();
  }
}

void WholeTensors::apply_rule(Whole& whole,
                              const at::Tensor& held,
                              const ParameterNorms& norms,
                              const optim::UpdateScalars& scalars) const {
  const ParamInfo& info = *segment_of(whole).info;
  // Each tensor-parallel rank transforms the whole, because all of them own it at the same place
  // among their data-parallel ranks.
  const at::Tensor matrix =
      info.cut() ? assembled(info, held, context_.world, *context_.model.tensor_parallel()->group)
                 : held;
  const std::vector<double> of_whole = norms.of(whole.group, whole.segment);
  optim::MatrixView view;
  view.direction = matrix.data_ptr<float>();
  for (at::Tensor& state : whole.state)
    view.state.push_back(state.data_ptr<float>());
  view.facts = &whole.facts;
  view.norms = of_whole;
  context_.rule.transform(view, scalars);
  if (info.cut()) held.copy_(box_of(matrix, info.held()).reshape({-1}));
}

void WholeTensors::transform_owned(Whole& whole,
                                   ShardStore& store,
                                   const ParameterNorms& norms,
                                   const optim::UpdateScalars& scalars) const {
  const comm::Group& ranks = context_.group();
  const Segment& segment = segment_of(whole);
  const FlatLayout& layout = group_of(whole).layout;
  const ParamShard* const own = store.find(whole.group, whole.segment);
  const bool alone = own != nullptr && own->numel == segment.numel;
  const at::Tensor held = alone ? own->direction : at::empty({segment.numel}, at::kFloat);
  const auto each_piece = [&](auto fn) {
    for (int r = 0; r < ranks.size() && context_.stage > 0; ++r) {
      const Segment range =
          segment.within(layout.shard_begin(r), layout.shard_begin(r) + layout.shard_numel());
      if (range.numel == 0) continue;
      fn(r, held.narrow(0, range.begin - segment.begin, range.numel));
    }
  };
  if (!alone) {
    each_piece([&](int r, const at::Tensor& piece) {
      if (r == ranks.index) {
        piece.copy_(own->direction);
      } else {
        receive(r, kToOwner, piece, whole);
      }
    });
  }
  apply_rule(whole, held, norms, store.beginnings().scalars_of(whole.facts, scalars));
  if (alone) return;
  std::vector<comm::WorkPtr> sent;
  each_piece([&](int r, const at::Tensor& piece) {
    if (r == ranks.index) {
      own->direction.copy_(piece);
    } else {
      sent.push_back(send(r, kFromOwner, piece, whole));
    }
  });
  for (const comm::WorkPtr& work : sent)
    work->wait();
}

void WholeTensors::add_pieces(std::vector<checkpoint::PieceBytes>& out, bool for_save) {
  const nn::TensorParallel* const tensor = context_.model.tensor_parallel();
  const bool first_holder = tensor == nullptr || tensor->group->index == 0;
  for (Whole& whole : wholes_) {
    const bool writes =
        whole.owner == context_.group().index && group_of(whole).counted && first_holder;
    if (for_save ? !writes : !owns(whole)) continue;
    std::size_t s = 0;
    for (const optim::StateSpec& state : context_.rule.state(whole.facts)) {
      if (state.extent == optim::Extent::Elements) continue;
      const std::int64_t numel = state_numel(state, whole.facts, 0);
      const Shape shape = {numel};
      auto* const data = static_cast<std::byte*>(whole.state[s++].data_ptr());
      out.push_back({fmt::format("optimizer.{}.{}", state.name, whole.facts.name),
                     DType::F32,
                     shape,
                     {mesh::whole(shape), 0, numel},
                     {data, static_cast<std::size_t>(numel) * sizeof(float)}});
    }
  }
}

}  // namespace tessera::parallel

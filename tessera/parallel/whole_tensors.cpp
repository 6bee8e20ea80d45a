// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/whole_tensors.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/memory/ledger.h"
#include "tessera/ops/newton_schulz.h"
#include "tessera/parallel/assembled.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/planned_buffers.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"

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

/// A parameter as it is declared, or one matrix of a stacked one as if it were a parameter.
ParamInfo matrix_of(const Segment& segment) {
  ParamInfo info = *segment.info;
  if (!info.stacked()) return info;
  std::vector<mesh::Split> splits;
  for (mesh::Split split : info.spec.splits) {
    if (split.dim-- > 0) splits.push_back(std::move(split));
  }
  info.spec.splits = std::move(splits);
  if (info.room_matrices > 0) info.room /= info.room_matrices;
  info.room_matrices = 0;
  info.box = segment.box();
  info.box.begin.erase(info.box.begin.begin());
  info.box.end.erase(info.box.end.begin());
  info.shape.erase(info.shape.begin());
  info.axes.erase(info.axes.begin());
  return info;
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

std::int64_t WholeTensors::bytes(const PlannedStage& stage, const optim::Rule& rule) {
  struct Directions {
    std::int64_t numel = 0, largest = 0;
  };
  std::map<std::int64_t, Directions> by_shards;  // the ranks among which they are spread
  for (const PlannedBuffer& buffer : stage.buffers) {
    for (const Segment& segment : buffer.layout.segments()) {
      if (!buffer.group.trainable || rule.scope(facts_of(segment)) != optim::Scope::WholeTensor)
        continue;
      Directions& directions = by_shards[stage.zero_stage >= 1 ? buffer.ranks.fold : 1];
      directions.numel += segment.numel;
      directions.largest = std::max(directions.largest, segment.numel);
    }
  }
  std::int64_t out = 0;
  for (const auto& [shards, directions] : by_shards) {
    const std::int64_t mine = 4 * directions.numel / shards;
    out += mine;
    if (shards > 1) out += mine / shards * (shards - 1) + 4 * directions.largest;
  }
  return out;
}

WholeTensors::WholeTensors(const UpdateContext& context) : context_(context) {
  for (std::size_t g = 0; g < context_.model.groups().size(); ++g) {
    const FlatGroup& group = context_.model.groups()[g];
    for (std::size_t s = 0; s < group.layout.segments().size() && group.trainable; ++s) {
      optim::ParamFacts facts = facts_of(group.layout.segments()[s]);
      if (context_.rule.scope(facts) == optim::Scope::WholeTensor)
        wholes_.push_back({static_cast<int>(g), static_cast<int>(s), 0, {}, std::move(facts)});
    }
  }
  assign_owners();
}

void WholeTensors::assign_owners() {
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  std::map<const comm::Group*, std::vector<Whole*>> of_ranks;
  for (Whole& whole : wholes_)
    of_ranks[&ranks_of(whole)].push_back(&whole);
  for (const auto& [ranks, wholes] : of_ranks) {
    std::vector<double> costs;
    for (const Whole* const whole : wholes)
      costs.push_back(cost(whole->facts));
    const std::vector<int> owners = balanced_owners(costs, ranks->size());
    for (std::size_t i = 0; i < wholes.size(); ++i)
      wholes[i]->owner = owners[i];
  }
  for (Whole& whole : wholes_) {
    if (!owns(whole)) continue;
    for (const optim::StateSpec& state : context_.rule.state(whole.facts)) {
      if (state.extent != optim::Extent::Elements)
        whole.state.push_back(at::zeros({state_numel(state, whole.facts, 0)}, at::kFloat));
    }
  }
}

comm::Transport& WholeTensors::transport(const at::Tensor& piece) const {
  return piece.is_cpu() ? context_.world.host_transport() : context_.world.transport();
}

comm::WorkPtr WholeTensors::send(int index,
                                 int tag,
                                 const at::Tensor& piece,
                                 const Whole& whole) const {
  return transport(piece).send(ranks_of(whole).ranks[static_cast<std::size_t>(index)],
                               tag,
                               span_of(piece),
                               TESSERA_HERE(fmt::format("direction of {}", whole.facts.name)));
}

void WholeTensors::receive(int index, int tag, const at::Tensor& piece, const Whole& whole) const {
  transport(piece)
      .recv(ranks_of(whole).ranks[static_cast<std::size_t>(index)],
            tag,
            span_of(piece),
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
  const ParamInfo info = matrix_of(segment_of(whole));
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
  const ops::ScopedMatrixDevice there(from_torch(matrix.device()));
  context_.rule.transform(view, scalars);
  if (info.cut()) held.copy_(box_of(matrix, info.held()).reshape({-1}));
}

void WholeTensors::transform_owned(Whole& whole,
                                   ShardStore& store,
                                   const ParameterNorms& norms,
                                   const optim::UpdateScalars& scalars) const {
  const comm::Group& ranks = ranks_of(whole);
  const Segment& segment = segment_of(whole);
  const FlatLayout& layout = group_of(whole).layout;
  const ParamShard* const own = store.find(whole.group, whole.segment);
  const bool alone = own != nullptr && own->numel == segment.numel;
  const at::Device device =
      store.on_host() ? at::Device(at::kCPU) : at::Device(context_.model.device());
  const at::Tensor held =
      alone ? own->direction : at::empty({segment.numel}, at::device(device).dtype(at::kFloat));
  const auto each_piece = [&](auto fn) {
    for (int r = 0; r < ranks.size() && context_.stage(whole.group) > 0; ++r) {
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
  apply_rule(whole, held, norms, store.beginnings().scalars_of(segment.info->name, scalars));
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
  const comm::World& world = context_.world;
  for (Whole& whole : wholes_) {
    const FlatGroup& group = group_of(whole);
    const Segment& segment = segment_of(whole);
    const ParamInfo& info = *segment.info;
    const bool saves = whole.owner == ranks_of(whole).index && group.counted &&
                       writes_of_matrix(world.mesh(), world.rank(), group.axes, info);
    if (for_save ? !saves : !owns(whole)) continue;
    std::size_t s = 0;
    for (const optim::StateSpec& state : context_.rule.state(whole.facts)) {
      if (state.extent == optim::Extent::Elements) continue;
      const std::int64_t numel = state_numel(state, whole.facts, 0);
      // A stacked parameter has such a state for each of its matrices.
      Shape shape = {numel};
      mesh::Box box = mesh::whole(shape);
      if (info.stacked()) {
        shape.insert(shape.begin(), info.num_matrices());
        box = {{segment.matrix, 0}, {segment.matrix + 1, numel}};
      }
      auto* const data = static_cast<std::byte*>(whole.state[s++].data_ptr());
      out.push_back({fmt::format("optimizer.{}.{}", state.name, info.name),
                     DType::F32,
                     shape,
                     {std::move(box), 0, numel},
                     {data, static_cast<std::size_t>(numel) * sizeof(float)}});
    }
  }
}

}  // namespace tessera::parallel

// SPDX-License-Identifier: Apache-2.0
// Directions that a rule transforms whole: how ShardedOptimizer brings each to its owner and back.
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/parallel/sharded_optimizer.h"

namespace tessera::parallel {
namespace {

/// Messages of an update between ranks: directions on their way to the owner and back.
constexpr int kToOwner = 0x6f70;
constexpr int kFromOwner = 0x6f71;

/// A view of the box.
at::Tensor box_of(const at::Tensor& whole, const mesh::Box& box) {
  at::Tensor out = whole;
  for (std::size_t d = 0; d < box.begin.size(); ++d)
    out = out.narrow(static_cast<std::int64_t>(d), box.begin[d], box.end[d] - box.begin[d]);
  return out;
}

comm::Span floats(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), DType::F32, {}};
}

}  // namespace

ShardedOptimizer::Part* ShardedOptimizer::part_of(int group, int segment) {
  for (Part& part : slots_[static_cast<std::size_t>(group)].parts) {
    if (part.segment_index == segment) return &part;
  }
  return nullptr;
}

/// Directions go to their owners, all at once; each owner transforms its own in order and sends the
/// pieces back.
void ShardedOptimizer::transform(const optim::UpdateScalars& scalars) {
  std::vector<comm::WorkPtr> sent;
  if (stage_ > 0) {
    for (const Whole& whole : wholes_) {
      const Part* part = part_of(whole.group, whole.segment);
      if (part == nullptr || owns(whole)) continue;
      sent.push_back(
          world_.transport().send(group_.ranks[static_cast<std::size_t>(whole.owner)],
                                  kToOwner,
                                  floats(part->direction),
                                  TESSERA_HERE(fmt::format("direction of {}", whole.facts.name))));
    }
  }
  for (Whole& whole : wholes_) {
    if (owns(whole)) transform_one(whole, scalars);
  }
  for (Whole& whole : wholes_) {
    Part* part = part_of(whole.group, whole.segment);
    if (part == nullptr || owns(whole)) continue;
    world_.transport()
        .recv(group_.ranks[static_cast<std::size_t>(whole.owner)],
              kFromOwner,
              floats(part->direction),
              TESSERA_HERE(fmt::format("direction of {}", whole.facts.name)))
        ->wait();
  }
  for (const comm::WorkPtr& work : sent) {
    work->wait();
    work->wait_reusable();
  }
}

/// The whole tensor from the boxes of all tensor-parallel ranks: each of them transforms it,
/// because they own it at the same place along their data-parallel ranks.
at::Tensor ShardedOptimizer::whole_of(const ParamInfo& info, const at::Tensor& held) {
  const comm::Group& group = *model_.tensor_parallel()->group;
  const std::int64_t room = info.room_numel();
  const at::Tensor mine = at::zeros({room}, at::kFloat);
  mine.narrow(0, 0, held.numel()).copy_(held);
  const at::Tensor all = at::empty({group.size(), room}, at::kFloat);
  const auto work = world_.transport().all_gather(
      group,
      floats(mine),
      floats(all),
      TESSERA_HERE(fmt::format("boxes of the direction of {}", info.name)));
  work->wait();
  work->wait_reusable();
  at::Tensor whole = at::empty(info.shape, at::kFloat);
  for (int r = 0; r < group.size(); ++r) {
    const mesh::Box box = mesh::local_box(
        info.shape, info.spec, world_.mesh(), group.ranks[static_cast<std::size_t>(r)]);
    const at::Tensor place = box_of(whole, box);
    place.copy_(all[r].narrow(0, 0, box.numel()).view(place.sizes()));
  }
  return whole;
}

void ShardedOptimizer::transform_one(Whole& whole, const optim::UpdateScalars& scalars) {
  const Segment& segment = segment_of(whole);
  const FlatLayout& layout = model_.groups()[static_cast<std::size_t>(whole.group)].layout;
  Part* const own = part_of(whole.group, whole.segment);
  const bool alone = own != nullptr && own->numel == segment.numel;
  const at::Tensor held = alone ? own->direction : at::empty({segment.numel}, at::kFloat);
  const auto each_piece = [&](auto fn) {
    for (int r = 0; r < group_.size() && stage_ > 0; ++r) {
      const Segment range =
          segment.within(layout.shard_begin(r), layout.shard_begin(r) + layout.shard_numel());
      if (range.numel == 0) continue;
      fn(r, held.narrow(0, range.begin - segment.begin, range.numel));
    }
  };
  if (!alone) {
    each_piece([&](int r, const at::Tensor& piece) {
      if (r == group_.index) {
        piece.copy_(own->direction);
        return;
      }
      world_.transport()
          .recv(group_.ranks[static_cast<std::size_t>(r)],
                kToOwner,
                floats(piece),
                TESSERA_HERE(fmt::format("direction of {}", whole.facts.name)))
          ->wait();
    });
  }
  const ParamInfo& info = *segment.info;
  const at::Tensor matrix = info.cut() ? whole_of(info, held) : held;
  optim::MatrixView view;
  view.direction = matrix.data_ptr<float>();
  for (at::Tensor& state : whole.state)
    view.state.push_back(state.data_ptr<float>());
  view.facts = &whole.facts;
  view.norms = whole.norms;
  rule_.transform(view, scalars_of(whole.facts, scalars));
  if (info.cut()) held.copy_(box_of(matrix, info.held()).reshape({-1}));
  if (alone) return;
  std::vector<comm::WorkPtr> sent;
  each_piece([&](int r, const at::Tensor& piece) {
    if (r == group_.index) {
      own->direction.copy_(piece);
      return;
    }
    sent.push_back(
        world_.transport().send(group_.ranks[static_cast<std::size_t>(r)],
                                kFromOwner,
                                floats(piece),
                                TESSERA_HERE(fmt::format("direction of {}", whole.facts.name))));
  });
  for (const comm::WorkPtr& work : sent)
    work->wait();
}

}  // namespace tessera::parallel

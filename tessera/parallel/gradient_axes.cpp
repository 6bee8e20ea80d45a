// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/gradient_axes.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/comm/message_channels.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

/// Message tag for tied parameters between stages.
constexpr int kTied = 0x7469;

}  // namespace

void open_channels_of_tied(comm::World& world, ModelInstance& model) {
  auto* const transport = dynamic_cast<comm::MessageChannels*>(&world.transport());
  if (transport == nullptr) return;
  const comm::Group& column = world.group({mesh::Axis::Pp});
  std::set<std::pair<int, int>> ends;  // in an order that is the same on all ranks
  for (const FlatGroup& group : model.groups()) {
    if (!group.trainable || !group.across_stages()) continue;
    const int first = group.use_stages.front();
    for (const int stage : group.use_stages) {
      if (stage == first || (column.index != first && column.index != stage)) continue;
      ends.emplace(first, stage);
      ends.emplace(stage, first);
    }
  }
  std::vector<comm::MessageChannel> channels;
  for (const auto& [from, to] : ends)
    channels.push_back({column.ranks[static_cast<std::size_t>(from)],
                        column.ranks[static_cast<std::size_t>(to)],
                        kTied});
  transport->open_channels(channels, TESSERA_HERE("channels of tied parameters"));
}

void add_over_stages(comm::World& world,
                     const FlatGroup& group,
                     const std::vector<at::Tensor>& sums) {
  const comm::Group& column = world.group({mesh::Axis::Pp});
  const auto rank_of = [&](int stage) { return column.ranks[static_cast<std::size_t>(stage)]; };
  comm::Transport& transport = world.transport();
  const auto site = TESSERA_HERE("add gradients of " + group.layout.name());
  const at::Tensor& sum = sums.front();
  const int first = group.use_stages.front();
  if (!group.counted) {
    for (const at::Tensor& use : sums)
      transport.send(rank_of(first), kTied, span_of(use), site)->wait();
    transport.recv(rank_of(first), kTied, span_of(sum), site)->wait();
    return;
  }
  const at::Tensor other = at::empty_like(sum);
  std::size_t own = 1;
  std::vector<int> others;
  for (std::size_t h = 1; h < group.use_stages.size(); ++h) {
    const int stage = group.use_stages[h];
    if (stage == first) {
      sum.add_(sums[own++]);
      continue;
    }
    transport.recv(rank_of(stage), kTied, span_of(other), site)->wait();
    sum.add_(other);
    if (std::find(others.begin(), others.end(), stage) == others.end()) others.push_back(stage);
  }
  std::vector<comm::WorkPtr> sent;
  for (const int stage : others)
    sent.push_back(transport.send(rank_of(stage), kTied, span_of(sum), site));
  for (const comm::WorkPtr& work : sent)
    work->wait_reusable();
}

void add_over_sequence(comm::World& world, ModelInstance& model, const SumOfGroup& sum) {
  // Calls fn with the part of each such parameter.
  const auto each_share = [&](const auto& fn) {
    for (std::size_t g = 0; g < model.groups().size(); ++g) {
      const FlatGroup& group = model.groups()[g];
      if (!group.trainable) continue;
      const std::int64_t begin = group.layout.shard_begin(group.ranks.fold->index),
                         end = begin + group.layout.shard_numel();
      at::Tensor of_group;
      for (const Segment& segment : group.layout.segments()) {
        const std::int64_t from = std::max(begin, segment.begin), to = std::min(end, segment.end());
        if (segment.info->cut_over(mesh::AxisSet::tp()) || from >= to) continue;
        if (!of_group.defined()) of_group = sum(g);
        fn(of_group.narrow(0, from - begin, to - from));
      }
    }
  };
  std::vector<at::Tensor> shares;
  each_share([&](const at::Tensor& share) {
    shares.push_back(share.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
  });
  if (shares.empty()) return;
  const at::Tensor all = at::cat(shares);
  world.transport()
      .all_reduce(*model.tensor_parallel()->group,
                  span_of(all),
                  comm::Op::Sum,
                  TESSERA_HERE("add gradients of the ranks' tokens"))
      ->wait();
  std::int64_t at = 0;
  each_share([&](const at::Tensor& share) {
    share.copy_(all.narrow(0, at, share.numel()));
    at += share.numel();
  });
}

void add_over_context(comm::World& world, ModelInstance& model, const SumOfGroup& sum_of_group) {
  for (std::size_t g = 0; g < model.groups().size(); ++g) {
    const FlatGroup& group = model.groups()[g];
    if (!group.trainable || !group.axes.partial.has(mesh::Axis::Cp)) continue;
    const at::Tensor sum = sum_of_group(g);
    const at::Tensor wide = sum.to(at::kFloat);
    const comm::WorkPtr work = world.transport().all_reduce(
        *model.context_parallel()->group,
        span_of(wide),
        comm::Op::Sum,
        TESSERA_HERE("add gradients of the ranks' tokens, " + group.layout.name()));
    work->wait();
    work->wait_reusable();
    if (!wide.is_same(sum)) sum.copy_(wide);
  }
}

}  // namespace tessera::parallel

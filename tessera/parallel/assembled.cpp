// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/assembled.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/tensor/span.h"

namespace tessera::parallel {

at::Tensor box_of(const at::Tensor& whole, const mesh::Box& box) {
  at::Tensor out = whole;
  for (std::size_t d = 0; d < box.begin.size(); ++d)
    out = out.narrow(static_cast<std::int64_t>(d), box.begin[d], box.end[d] - box.begin[d]);
  return out;
}

at::Tensor assembled(const ParamInfo& info,
                     const at::Tensor& held,
                     comm::World& world,
                     const comm::Group& group) {
  const std::int64_t room = info.room_numel();
  const at::Tensor mine = at::zeros({room}, held.options());
  mine.narrow(0, 0, held.numel()).copy_(held);
  const at::Tensor all = at::empty({group.size(), room}, held.options());
  comm::Transport& transport = held.is_cpu() ? world.host_transport() : world.transport();
  const auto work = transport.all_gather(
      group, span_of(mine), span_of(all), TESSERA_HERE(fmt::format("parts of {}", info.name)));
  work->wait();
  work->wait_reusable();
  at::Tensor whole = at::empty(info.shape, held.options());
  // The world may be a part of the job, in which a group names its ranks.
  const int first = world.everyone().ranks.front();
  for (int r = 0; r < group.size(); ++r) {
    const mesh::Box box = mesh::local_box(
        info.shape, info.spec, world.mesh(), group.ranks[static_cast<std::size_t>(r)] - first);
    const at::Tensor place = box_of(whole, box);
    place.copy_(all[r].narrow(0, 0, box.numel()).view(place.sizes()));
  }
  return whole;
}

}  // namespace tessera::parallel

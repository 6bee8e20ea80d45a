// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/flat_buffer.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/tensor/dtype.h"

namespace tessera {

namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

mesh::Box Segment::box() const {
  mesh::Box out = info->held();
  if (matrix >= 0) {
    out.begin.front() = matrix;
    out.end.front() = matrix + 1;
  }
  return out;
}

std::string Segment::name() const {
  return matrix < 0 ? info->name : fmt::format("{}[{}]", info->name, matrix);
}

FlatLayout::FlatLayout(std::string name,
                       const std::vector<std::shared_ptr<const ParamInfo>>& params,
                       int shards)
    : name_(std::move(name)), shards_(shards) {
  TESSERA_ASSERT(shards >= 1);
  std::int64_t at = 0;
  for (const auto& info : params) {
    if (!info->stacked()) {
      const std::int64_t room = round_up(info->room_numel(), kChunk);
      params_.push_back({info, segments_.size(), 1, at, room});
      segments_.push_back({info, at, info->local_numel()});
      at += room;
      continue;
    }
    const mesh::Box held = info->held();
    const std::int64_t first = held.begin.front(), count = held.end.front() - first;
    TESSERA_ASSERT(count > 0);
    const std::int64_t most = info->room_matrices > 0 ? info->room_matrices : info->num_matrices();
    const std::int64_t stride = round_up(info->room_numel() / most, kChunk);
    params_.push_back({info, segments_.size(), static_cast<std::size_t>(count), at, stride});
    for (std::int64_t i = 0; i < count; ++i)
      segments_.push_back({info, at + i * stride, info->local_numel() / count, first + i});
    at += most * stride;
  }
  numel_ = round_up(at, kChunk * shards);
}

void FlatLayout::replace_info(std::size_t param, std::shared_ptr<const ParamInfo> info) {
  FlatParam& of = params_[param];
  for (std::size_t i = 0; i < of.count; ++i)
    segments_[of.first + i].info = info;
  of.info = std::move(info);
}

at::Tensor tensor_over(const comm::RegionPtr& region, std::int64_t numel, DType dtype) {
  TESSERA_ASSERT(region != nullptr);
  TESSERA_ASSERT(static_cast<std::size_t>(numel) * size_of(dtype) <= region->bytes());
  // A region without memory belongs to a job that does not run (comm/transports/shapes.h).
  if (region->data() == nullptr && region->bytes() > 0)
    return at::empty({numel}, at::TensorOptions().dtype(to_torch(dtype)).device(at::kMeta));
  const c10::Device device = to_torch(region->device());
  return at::from_blob(
      region->data(),
      {numel},
      [region](void*) {},
      at::TensorOptions().dtype(to_torch(dtype)).device(device),
      device);
}

at::Tensor view_of(const at::Tensor& flat, const FlatParam& param) {
  const auto count = static_cast<std::int64_t>(param.count);
  const std::int64_t numel = param.info->local_numel() / count;
  if (!param.info->stacked())
    return flat.narrow(0, param.begin, numel).view(param.info->local_shape());
  return flat.narrow(0, param.begin, count * param.stride)
      .view({count, param.stride})
      .narrow(1, 0, numel)
      .view(param.info->local_shape());
}

}  // namespace tessera

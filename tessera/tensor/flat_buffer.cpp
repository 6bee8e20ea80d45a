// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/flat_buffer.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/tensor/dtype.h"

namespace tessera {

namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

FlatLayout::FlatLayout(std::string name,
                       const std::vector<std::shared_ptr<const ParamInfo>>& params,
                       int shards)
    : name_(std::move(name)), shards_(shards) {
  TESSERA_ASSERT(shards >= 1);
  std::int64_t at = 0;
  for (const auto& info : params) {
    segments_.push_back({info, at, info->local_numel()});
    at = round_up(at + info->room_numel(), kChunk);
  }
  numel_ = round_up(at, kChunk * shards);
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

at::Tensor view_of(const at::Tensor& flat, const Segment& segment) {
  return flat.narrow(0, segment.begin, segment.numel).view(segment.info->local_shape());
}

}  // namespace tessera

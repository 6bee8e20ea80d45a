// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/kept_state.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/nf4.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {
namespace {

std::int64_t state_blocks(std::int64_t numel) {
  return (numel + kStateBlock - 1) / kStateBlock;
}

}  // namespace

std::int64_t kept_bytes(optim::KeptIn kept_in, DType type, std::int64_t numel) {
  if (kept_in == optim::KeptIn::Type) return numel * static_cast<std::int64_t>(size_of(type));
  return numel + 4 * state_blocks(numel);
}

KeptState KeptState::zeros(optim::KeptIn kept_in,
                           DType type,
                           std::int64_t numel,
                           c10::Device device) {
  if (kept_in == optim::KeptIn::Type)
    return {.values = at::zeros({numel}, at::device(device).dtype(to_torch(type))), .scales = {}};
  TESSERA_ASSERT(device.is_cpu());
  const bool both = kept_in == optim::KeptIn::Codes8;
  return {.values = at::zeros({numel}, at::kByte),
          .scales = at::zeros({state_blocks(numel)}, at::kFloat),
          .map = both ? &DynamicMap::both() : &DynamicMap::positive()};
}

at::Tensor KeptState::widened() const {
  if (map == nullptr) return values.to(at::kFloat);
  at::Tensor out = at::empty({values.numel()}, at::kFloat);
  ops::from_codes8(values, scales, kStateBlock, *map, out);
  return out;
}

void KeptState::take(const at::Tensor& wide, bool again) const {
  if (map == nullptr) {
    if (!values.is_same(wide)) values.copy_(wide);
    return;
  }
  ops::to_codes8(wide, kStateBlock, *map, values, scales, again);
}

}  // namespace tessera::parallel

// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/kept_state.h"

#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/nf4.h"
#include "tessera/parallel/widened_state.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {
namespace {

std::int64_t state_blocks(std::int64_t numel) {
  return (numel + kStateBlock - 1) / kStateBlock;
}

at::Tensor tensor_at(std::span<std::byte> memory, std::int64_t numel, at::ScalarType type) {
  return at::from_blob(memory.data(), {numel}, at::dtype(type));
}

}  // namespace

std::int64_t kept_bytes(optim::KeptIn kept_in, DType type, std::int64_t numel) {
  if (kept_in == optim::KeptIn::Type) return numel * static_cast<std::int64_t>(size_of(type));
  return numel + 4 * state_blocks(numel);
}

KeptState::KeptState(optim::KeptIn kept_in, DType type, std::int64_t numel)
    : numel_(numel), type_(kept_in == optim::KeptIn::Type ? type : DType::U8) {
  if (kept_in == optim::KeptIn::Type) return;
  const bool both = kept_in == optim::KeptIn::Codes8;
  map_ = both ? &DynamicMap::both() : &DynamicMap::positive();
}

KeptState KeptState::zeros(optim::KeptIn kept_in,
                           DType type,
                           std::int64_t numel,
                           c10::Device device) {
  KeptState out(kept_in, type, numel);
  out.values_ = at::zeros({numel}, at::device(device).dtype(to_torch(out.type_)));
  if (out.map_ != nullptr)
    out.scales_ = at::zeros({state_blocks(numel)}, out.values_.options().dtype(at::kFloat));
  return out;
}

KeptState KeptState::resting(optim::KeptIn kept_in, DType type, std::int64_t numel) {
  return {kept_in, type, numel};
}

KeptState KeptState::over(at::Tensor values) {
  KeptState out(optim::KeptIn::Type, from_torch(values.scalar_type()), values.numel());
  out.values_ = std::move(values);
  return out;
}

const at::Tensor& KeptState::stored() const {
  TESSERA_ASSERT(in_memory());
  return values_;
}

float* KeptState::floats() const {
  TESSERA_ASSERT(wide());
  return stored().data_ptr<float>();
}

at::Tensor KeptState::widened() const {
  if (map_ == nullptr) return stored().to(at::kFloat);
  at::Tensor out = at::empty({numel_}, stored().options().dtype(at::kFloat));
  ops::from_codes8(stored(), scales_, kStateBlock, *map_, out);
  return out;
}

void KeptState::take(const at::Tensor& wide, bool again) const {
  if (map_ == nullptr) {
    if (!stored().is_same(wide)) values_.copy_(wide);
    return;
  }
  ops::to_codes8(wide, kStateBlock, *map_, stored(), scales_, again);
}

std::int64_t KeptState::bytes() const {
  const std::int64_t values = state_aligned(numel_ * static_cast<std::int64_t>(size_of(type_)));
  return map_ == nullptr ? values : values + state_aligned(4 * state_blocks(numel_));
}

void KeptState::attach(std::span<std::byte> memory) {
  TESSERA_ASSERT(!in_memory() && std::ssize(memory) == bytes());
  values_ = tensor_at(memory, numel_, to_torch(type_));
  if (map_ == nullptr) return;
  const auto first = static_cast<std::size_t>(state_aligned(numel_));
  scales_ = tensor_at(memory.subspan(first), state_blocks(numel_), at::kFloat);
}

void KeptState::detach() {
  values_.reset();
  scales_.reset();
}

}  // namespace tessera::parallel

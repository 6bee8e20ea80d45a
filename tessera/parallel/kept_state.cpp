// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/kept_state.h"

#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/four_bits.h"
#include "tessera/ops/nf4.h"
#include "tessera/parallel/widened_state.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {
namespace {

std::int64_t blocks_of(std::int64_t numel, std::int64_t block) {
  return (numel + block - 1) / block;
}

at::Tensor tensor_at(std::span<std::byte> memory, std::int64_t numel, at::ScalarType type) {
  return at::from_blob(memory.data(), {numel}, at::dtype(type));
}

}  // namespace

std::int64_t kept_bytes(optim::KeptIn kept_in, DType type, std::int64_t numel) {
  switch (kept_in) {
    case optim::KeptIn::Type:
      break;
    case optim::KeptIn::Codes8:
    case optim::KeptIn::Codes8Positive:
      return numel + 4 * blocks_of(numel, kStateBlock);
    case optim::KeptIn::Codes4:
    case optim::KeptIn::Codes4Positive:
      return (numel + 1) / 2 + 4 * blocks_of(numel, kFourBitStateBlock);
  }
  return numel * static_cast<std::int64_t>(size_of(type));
}

KeptState::KeptState(optim::KeptIn kept_in, DType type, std::int64_t numel)
    : numel_(numel), type_(kept_in == optim::KeptIn::Type ? type : DType::U8) {
  switch (kept_in) {
    case optim::KeptIn::Type:
      break;
    case optim::KeptIn::Codes8:
      map_ = &DynamicMap::both();
      break;
    case optim::KeptIn::Codes8Positive:
      map_ = &DynamicMap::positive();
      break;
    case optim::KeptIn::Codes4:
      four_bits_ = &FourBitMap::both();
      break;
    case optim::KeptIn::Codes4Positive:
      four_bits_ = &FourBitMap::positive();
      break;
  }
}

std::int64_t KeptState::num_stored() const {
  return four_bits_ != nullptr ? (numel_ + 1) / 2 : numel_;
}

std::int64_t KeptState::num_scales() const {
  if (!has_scales()) return 0;
  return blocks_of(numel_, four_bits_ != nullptr ? kFourBitStateBlock : kStateBlock);
}

KeptState KeptState::zeros(optim::KeptIn kept_in,
                           DType type,
                           std::int64_t numel,
                           c10::Device device) {
  KeptState out(kept_in, type, numel);
  out.values_ = at::zeros({out.num_stored()}, at::device(device).dtype(to_torch(out.type_)));
  if (out.has_scales())
    out.scales_ = at::zeros({out.num_scales()}, out.values_.options().dtype(at::kFloat));
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
  if (!has_scales()) return stored().to(at::kFloat);
  at::Tensor out = at::empty({numel_}, stored().options().dtype(at::kFloat));
  if (four_bits_ != nullptr) {
    ops::from_four_bits(stored(), scales_, kFourBitStateBlock, *four_bits_, out);
  } else {
    ops::from_codes8(stored(), scales_, kStateBlock, *map_, out);
  }
  return out;
}

void KeptState::take(const at::Tensor& wide, bool again) const {
  if (four_bits_ != nullptr) {
    ops::to_four_bits(wide, kFourBitStateBlock, *four_bits_, stored(), scales_, again);
  } else if (map_ != nullptr) {
    ops::to_codes8(wide, kStateBlock, *map_, stored(), scales_, again);
  } else if (!stored().is_same(wide)) {
    values_.copy_(wide);
  }
}

std::int64_t KeptState::bytes() const {
  const std::int64_t values =
      state_aligned(num_stored() * static_cast<std::int64_t>(size_of(type_)));
  return values + state_aligned(4 * num_scales());
}

void KeptState::attach(std::span<std::byte> memory) {
  TESSERA_ASSERT(!in_memory() && std::ssize(memory) == bytes());
  values_ = tensor_at(memory, num_stored(), to_torch(type_));
  if (!has_scales()) return;
  const auto first = static_cast<std::size_t>(state_aligned(num_stored()));
  scales_ = tensor_at(memory.subspan(first), num_scales(), at::kFloat);
}

void KeptState::detach() {
  values_.reset();
  scales_.reset();
}

}  // namespace tessera::parallel

// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/weights/coming.h"

#include <cstddef>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/memory/ledger.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {

at::Tensor hollow(std::int64_t numel, DType dtype, c10::Device device) {
  static std::byte nothing;
  const auto options = at::device(device).dtype(to_torch(dtype));
  at::Tensor tensor = at::from_blob(
      &nothing, {numel}, [](void*) {}, options, device);
  tensor.storage().set_data_ptr_noswap(at::DataPtr(nullptr, device));
  return tensor;
}

ComingWeights::ComingWeights(comm::World& world, std::int64_t numel, DType dtype)
    : WorkingWeights(dtype) {
  whole_ = hollow(numel, dtype, device_of(world));
}

ComingWeights::ComingWeights(const ComingWeights& other) : WorkingWeights(other) {
  whole_ = hollow(other.whole_.numel(), dtype_, other.whole_.device());
}

void ComingWeights::post() {
  if (gathered_) return;
  settle();
  {
    const memory::ScopedTag tag(memory::Tag::Parameters);
    const at::Tensor memory = at::empty({whole_.numel()}, whole_.options());
    at::DataPtr data(
        memory.mutable_data_ptr(),
        new at::Tensor(memory),
        [](void* owner) { delete static_cast<at::Tensor*>(owner); },
        whole_.device());
    whole_.storage().set_data_ptr_noswap(std::move(data));
  }
  gathered_ = true;
  start();
}

void ComingWeights::release() {
  if (!gathered_) return;
  wait();
  whole_.storage().set_data_ptr_noswap(at::DataPtr(nullptr, whole_.device()));
  gathered_ = false;
}

}  // namespace tessera::parallel

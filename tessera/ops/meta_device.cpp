// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/meta_device.h"

#include <utility>

#include <ATen/ATen.h>

namespace tessera::ops {
namespace {

thread_local c10::Device meta_device = c10::DeviceType::CPU;

}  // namespace

ScopedMetaDevice::ScopedMetaDevice(c10::Device device) noexcept
    : before_(std::exchange(meta_device, device)) {}

ScopedMetaDevice::~ScopedMetaDevice() {
  meta_device = before_;
}

const Backend& meta_backend() {
  return backend(meta_device);
}

at::Tensor meta_scratch(std::int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
}

}  // namespace tessera::ops

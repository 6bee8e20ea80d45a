// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/backend.h"

namespace tessera::ops {
namespace {

const Backend& find(c10::DeviceType type) {
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  return *backends().get(backends().has(name) ? name : "aten");
}

}  // namespace

Registry<const Backend*>& backends() {
  static Registry<const Backend*> registry("set of kernels");
  return registry;
}

const Backend& backend(c10::Device device) {
  static const Backend& of_host = find(c10::DeviceType::CPU);
  return device.is_cpu() ? of_host : find(device.type());
}

const Backend& backend(Device device) {
  return backend(torch_device(device));
}

c10::Device torch_device(Device device) {
  const auto index = static_cast<c10::DeviceIndex>(device.index);
  switch (device.kind) {
    case DeviceKind::Cpu:
      return {c10::DeviceType::CPU};
    case DeviceKind::Cuda:
      return {c10::DeviceType::CUDA, index};
    case DeviceKind::Meta:
      break;
  }
  return {c10::DeviceType::Meta};
}

}  // namespace tessera::ops

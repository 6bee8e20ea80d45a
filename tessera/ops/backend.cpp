// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/backend.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::ops {
namespace {

const Backend& find(c10::DeviceType type) {
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  TESSERA_REQUIRE(backends().has(name),
                  Unsupported,
                  "no kernels for tensors on \"" + name + "\"",
                  "move them to one of: " + text::join(backends().names(), ", "));
  return *backends().get(name);
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
  switch (device.kind) {
    case DeviceKind::Cpu:
      return backend(c10::Device(c10::DeviceType::CPU));
    case DeviceKind::Cuda:
      return backend(c10::Device(c10::DeviceType::CUDA));
    case DeviceKind::Meta:
      break;
  }
  throw Error(Error::Kind::Bug, "kernels for memory on meta", "");
}

}  // namespace tessera::ops

// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/backend.h"

#include <cstdlib>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/ops/batch_invariance.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops {
namespace {

const Backend& find(c10::DeviceType type) {
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  for (const std::string& known : {name + "_plugin", name}) {
    if (backends().has(known)) return *backends().get(known);
  }
  return *backends().get("aten");
}

const Backend& find_for_host() {
  const char* asked = std::getenv("TESSERA_KERNELS");
  if (asked == nullptr || *asked == '\0') return find(c10::DeviceType::CPU);
  std::vector<std::string> names;
  for (const std::string& name : backends().names()) {
    const Backend& known = *backends().get(name);
    if (!known.runs_on(c10::DeviceType::CPU)) continue;
    if (name == asked) return known;
    names.push_back(name);
  }
  throw Error(Error::Kind::Config,
              "TESSERA_KERNELS=" + std::string(asked) + " is not known",
              text::suggestion(asked, names));
}

}  // namespace

Registry<const Backend*>& backends() {
  static Registry<const Backend*> registry("set of kernels");
  return registry;
}

std::uint64_t operations_of_library() {
  return kOperations;
}

const Backend& backend(c10::Device device) {
  static const Backend& of_host = find_for_host();
  if (!device.is_cpu()) return find(device.type());
  static const Backend& invariant = *backends().get("batch_invariant");
  return batch_invariant() ? invariant : of_host;
}

const Backend& backend(Device device) {
  return backend(to_torch(device));
}

}  // namespace tessera::ops

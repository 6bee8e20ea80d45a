// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/aten/backend.h"

namespace tessera::ops::aten {
namespace {

const AtenBackend kBackend;
TESSERA_BACKEND(aten, kBackend);

}  // namespace

bool AtenBackend::runs_on(c10::DeviceType type) const {
  return type != c10::DeviceType::Meta;
}

}  // namespace tessera::ops::aten

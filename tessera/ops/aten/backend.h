// SPDX-License-Identifier: Apache-2.0
// The backend for any device: plain ATen operations in fp32 or better. It is the reference against
// which other backends are tested; a device's own backend may derive from it and override the
// operations for which it has kernels.
#pragma once

#include "tessera/ops/backend.h"

namespace tessera::ops::aten {

class AtenBackend : public Backend {
 public:
  [[nodiscard]] bool runs_on(c10::DeviceType type) const override;
#define TESSERA_OP(result, name, parameters) result name parameters const override;
#include "tessera/ops/backend_ops.inc"
};

}  // namespace tessera::ops::aten

// SPDX-License-Identifier: Apache-2.0
// The section `aio`: how disks are read and written on which parts of a training rest.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/config/fields.h"
#include "tessera/memory/tiers/tier.h"

namespace tessera::parallel {

/// In DeepSpeed's notation.
struct DiskOptions {
  std::optional<std::int64_t> block_size, queue_depth, intra_op_parallelism;
  /// The options of a tier without its folder.
  [[nodiscard]] memory::TierOptions tier() const;
  void describe(config::Fields& fields);
};

}  // namespace tessera::parallel

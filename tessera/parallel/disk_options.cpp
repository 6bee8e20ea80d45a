// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/disk_options.h"

#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/memory/pages.h"

namespace tessera::parallel {

memory::TierOptions DiskOptions::tier() const {
  memory::TierOptions out;
  if (block_size) {
    out.block_bytes = static_cast<std::int64_t>(
        memory::round_up(static_cast<std::size_t>(*block_size), memory::kPageBytes));
  }
  if (queue_depth || intra_op_parallelism) {
    const std::int64_t depth = queue_depth.value_or(out.transfers);
    out.transfers = static_cast<int>(
        std::min<std::int64_t>(depth * intra_op_parallelism.value_or(1), memory::kMostTransfers));
  }
  return out;
}

void DiskOptions::describe(config::Fields& f) {
  f.field(
      "block_size",
      block_size,
      {.text = "Size of a transfer, rounded up to a multiple of 4096. Each block has a checksum, "
               "and what is stored together is rounded up to whole blocks.",
       .unit = "bytes",
       .min = 1,
       .max = 1 << 28,
       .default_text = "1048576"});
  f.field("queue_depth",
          queue_depth,
          {.text = "Number of transfers under way at a time, for each of intra_op_parallelism; at "
                   "most 64 are made in total.",
           .min = 1,
           .max = 1e6,
           .default_text = "4"});
  f.field("intra_op_parallelism",
          intra_op_parallelism,
          {.text = "Factor of queue_depth.", .min = 1, .max = 1e6, .default_text = "1"});
}

}  // namespace tessera::parallel

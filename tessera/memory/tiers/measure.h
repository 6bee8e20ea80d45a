// SPDX-License-Identifier: Apache-2.0
// Measures how fast a tier reads and writes, as a training uses it: whole blocks with checksums,
// several transfers at a time, two buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/memory/tiers/tier.h"

namespace tessera::memory {

/// Bytes per second.
struct TierSpeed {
  TierOptions options;
  double write = 0, read = 0;
  /// The rate of reads while as many bytes are written, as in an update of the optimizer.
  double read_beside_write = 0;
  /// Seconds to read and write `bytes` each, both at the same time; what an update needs.
  [[nodiscard]] double update_s(std::int64_t bytes) const {
    return static_cast<double>(bytes) / read_beside_write;
  }
};

/// Measures a disk: writes a file of `bytes`, rounded up to whole blocks, reads it, then reads it
/// while another one is written. Memory: two times `bytes` on the disk; buffers of the size of the
/// transfers under way, at least 8 MiB each. Errors: those of the tier.
TierSpeed measure_disk(const TierOptions& options, std::int64_t bytes);

/// Stores the speed in the cache folder, so that plans know the seconds that the disk of
/// `speed.options.folder` needs. Errors: those of files::write_atomic().
void remember_speed(const TierSpeed& speed);
/// The speed of the disk of a folder that was stored last; nothing if none was, or if the entry
/// cannot be read. The folder need not exist.
std::optional<TierSpeed> remembered_speed(const std::string& folder);

/// Returns the element with the shortest update_s(), nullptr if there is none.
const TierSpeed* fastest(const std::vector<TierSpeed>& speeds);

}  // namespace tessera::memory

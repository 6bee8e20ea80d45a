// SPDX-License-Identifier: Apache-2.0
// The units in which an update works through a rank's part of the model, and the order of what it
// does with them. Pure functions on sizes: ShardStore cuts its buffers by them, update_shards()
// executes the order, and predictions can add it up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace tessera::parallel {

/// A range of the part of a flat buffer that a rank updates. Its masters and states are in memory,
/// travel and are updated together.
struct Unit {
  std::size_t group = 0;   ///< index of the flat buffer
  std::int64_t begin = 0;  ///< first element in the rank's part; a multiple of kChunk
  std::int64_t numel = 0;  ///< elements of the buffer, including gaps between parameters
  bool trained = true;     ///< the update changes it
  bool travels = false;    ///< its masters and states rest in a tier between updates
};

/// A parameter's range of a rank's part of a buffer.
struct UnitParam {
  std::int64_t begin = 0, numel = 0;
  bool whole = false;  ///< it may not be divided among units
};
/// Cuts the `numel` elements of a rank's part of buffer `group` into units of at most `most`
/// elements, at multiples of kChunk; only a parameter that may not be divided makes a unit larger.
/// `params` are in order. `most` is at least kChunk.
std::vector<Unit> cut_units(std::size_t group,
                            std::int64_t numel,
                            std::span<const UnitParam> params,
                            std::int64_t most = std::numeric_limits<std::int64_t>::max());

/// BeginWrite: waits until the working weights of a buffer may be written, and for its gradient.
/// Fetch: starts to read a unit into a free buffer. Update: waits for the unit, and updates it.
/// WriteBack: starts to write it. Settle: waits until it is written, which frees the buffer.
/// Publish: starts to send the working weights of a buffer to the ranks that need them.
enum class UpdateActionKind : std::uint8_t {
  BeginWrite,
  Fetch,
  Update,
  WriteBack,
  Settle,
  Publish
};
struct UpdateAction {
  UpdateActionKind kind{};
  std::size_t index = 0;  ///< of a flat buffer for BeginWrite and Publish, else of a unit
  bool operator==(const UpdateAction&) const = default;
};
/// The order of an update. The units of a group are neighbours in `units`; those that are not
/// trained are skipped, and those that do not travel have no Fetch, WriteBack and Settle. At most
/// `buffers` (1 or more) units are fetched and not settled at any time. With three or more, a unit
/// is read and another written while one is updated; with two, a unit is read or written meanwhile.
std::vector<UpdateAction> update_actions(std::span<const Unit> units, int buffers);

}  // namespace tessera::parallel

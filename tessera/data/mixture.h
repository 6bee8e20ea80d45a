// SPDX-License-Identifier: Apache-2.0
// Mixes several sources of data: the order in which their samples are read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/data/token_dataset.h"

namespace tessera::data {

/// An entry of data.sources.
struct DataSource {
  std::vector<std::string> paths;
  double weight = 1.0;  ///< above 0; its share of the samples relative to the other sources
  /// "a.jsonl", for messages.
  [[nodiscard]] std::string name() const;
};
/// The entries of data.sources; empty if it is not set. Throws Error{Config} with its place unless
/// it is a list of {"path": ..., "weight": ...}.
std::vector<DataSource> sources_of(const json::Value& sources);
/// Writes the paths of data.sources to data.train, to which other keys refer. Throws Error{Config}
/// if data.train names other data.
void spell_out_sources(json::Value& config);

/// data.mix_until: the length of an epoch over several sources.
enum class MixUntil : std::uint8_t {
  First,  ///< until one source has no unread sample: none is read twice
  Last,   ///< until all samples of all sources were read: smaller sources start again
};

MixUntil mix_until_of(const DataOptions& options);

/// The order of the samples of several sources. Sources are interleaved by their weights as evenly
/// as possible, or follow one another. It is a function of sizes and weights without random numbers
/// or state, so it does not depend on layout or resume. Memory: 4 bytes times the sum of the
/// weights as integers, at most 65,536. Const methods can be called from any thread.
class Mixture {
 public:
  struct Place {
    std::int64_t source = 0, index = 0;
    std::int64_t pass = 0;  ///< how often this epoch has read the whole source before
    bool operator==(const Place&) const = default;
  };
  /// `sizes`: above 0; `weights`: one per size, above 0. Weights with more than four decimals, or
  /// whose integer sum exceeds 65,536, are rounded to multiples of 1 / 65,536 of the total.
  static Mixture interleaved(std::vector<std::int64_t> sizes,
                             const std::vector<double>& weights,
                             MixUntil until);
  static Mixture joined(std::vector<std::int64_t> sizes);

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// The source and index of sample `index` of the mixture. O(1); joined: O(number of sources).
  [[nodiscard]] Place at(std::int64_t index) const;
  /// Number of a source's samples in an epoch.
  [[nodiscard]] std::int64_t count(std::int64_t source) const;
  /// Number of samples of the source of `place` that were read before it in this and all earlier
  /// epochs.
  [[nodiscard]] std::int64_t read_before(std::int64_t epoch, const Place& place) const {
    return epoch * count(place.source) +
           place.pass * sizes_[static_cast<std::size_t>(place.source)] + place.index;
  }

 private:
  std::vector<std::int64_t> sizes_;
  // Number of places of each source in the pattern; empty: joined.
  std::vector<std::int64_t> counts_;
  std::vector<std::uint16_t> pattern_;  // source of each place
  std::vector<std::uint16_t> earlier_;  // number of earlier places with the same source
  std::int64_t size_ = 0;
};

/// Combines token datasets of the same sample length, in the order of `mixture`.
std::unique_ptr<TokenDataset> make_mixed(std::vector<std::unique_ptr<TokenDataset>> parts,
                                         Mixture mixture);

}  // namespace tessera::data

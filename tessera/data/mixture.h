// SPDX-License-Identifier: Apache-2.0
// Several sources of data as one: in which order their samples come.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/data/token_dataset.h"

namespace tessera::data {

/// One of data.sources.
struct DataSource {
  std::vector<std::string> paths;
  double weight = 1.0;  ///< above 0; share of the samples, relative to the other sources
  /// "a.jsonl", for messages.
  [[nodiscard]] std::string name() const;
};
/// The entries of data.sources; none where it is not given. Error{Config} with its place for what
/// is no list of {"path": ..., "weight": ...}.
std::vector<DataSource> sources_of(const json::Value& sources);
/// Writes the paths of data.sources as data.train, which is what other keys are about.
/// Error{Config} where data.train names other data.
void spell_out_sources(json::Value& config);

/// data.mix_until: how long an epoch of several sources is.
enum class MixUntil : std::uint8_t {
  First,  ///< until a source has no sample that was not read: none is read twice
  Last,   ///< until all samples of all sources were read: smaller sources begin anew
};

MixUntil mix_until_of(const DataOptions& options);

/// The order of the samples of several sources. Sources are interleaved by their weights as evenly
/// as can be, or come one after the other. A function of sizes and weights: nothing is drawn and
/// nothing remembered, so that no layout and no resume changes it. Memory: 4 bytes times the sum of
/// the weights as whole numbers, at most 65,536. Threads: const methods from any thread.
class Mixture {
 public:
  struct Place {
    std::int64_t source = 0, index = 0;
    bool operator==(const Place&) const = default;
  };
  /// `sizes`: above 0; `weights`: as many, above 0. Weights of more than four decimals, or whose
  /// sum needs more than 65,536 places, are rounded to shares of so many.
  static Mixture interleaved(std::vector<std::int64_t> sizes,
                             const std::vector<double>& weights,
                             MixUntil until);
  static Mixture joined(std::vector<std::int64_t> sizes);

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Where sample `index` of the whole comes from. O(1); joined: O(number of sources).
  [[nodiscard]] Place at(std::int64_t index) const;
  /// Samples of a source in an epoch.
  [[nodiscard]] std::int64_t count(std::int64_t source) const;

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> counts_;    // of each source in the pattern; empty: joined
  std::vector<std::uint16_t> pattern_;  // source of each place
  std::vector<std::uint16_t> earlier_;  // places of the same source before it
  std::int64_t size_ = 0;
};

/// Token datasets of one length as one, in the order of `mixture`.
std::unique_ptr<TokenDataset> make_mixed(std::vector<std::unique_ptr<TokenDataset>> parts,
                                         Mixture mixture);

}  // namespace tessera::data

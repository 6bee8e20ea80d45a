// SPDX-License-Identifier: Apache-2.0
// Rules whose states are stored in eight or four bits between updates.
#pragma once

#include <cstdint>

#include "tessera/optim/rule.h"

namespace tessera::optim {

/// Storage of a state of Extent::Elements between updates: the type of the run's states, or eight
/// bits (base/quant_codes.h) or four (base/four_bit_codes.h) by blocks, for numbers of both signs
/// or for numbers that are not negative.
enum class KeptIn : std::uint8_t { Type, Codes8, Codes8Positive, Codes4, Codes4Positive };

/// An elementwise rule that chooses the storage of its states. Its update sees fp32 nevertheless.
class EightBitRule : public Rule {
 public:
  /// Returns the storage of state `index` of Rule::state().
  [[nodiscard]] virtual KeptIn kept_in(const ParamFacts& facts, std::size_t index) const = 0;
  /// By default the conversions run only on the host.
  [[nodiscard]] bool host_only() const override { return true; }
};

/// Returns the storage of a state for any rule.
inline KeptIn kept_in(const Rule& rule, const ParamFacts& facts, std::size_t index) {
  const auto* const narrow = dynamic_cast<const EightBitRule*>(&rule);
  return narrow == nullptr ? KeptIn::Type : narrow->kept_in(facts, index);
}

}  // namespace tessera::optim

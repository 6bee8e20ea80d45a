// SPDX-License-Identifier: Apache-2.0
// Rules whose states are kept in eight bits between updates.
#pragma once

#include <cstdint>

#include "tessera/optim/rule.h"

namespace tessera::optim {

/// What a state of Extent::Elements is kept in between updates: the type of the run's states, or
/// eight bits by blocks (base/quant_codes.h) for numbers of both signs or for none below 0.
enum class KeptIn : std::uint8_t { Type, Codes8, Codes8Positive };

/// An elementwise rule that says so of its states. An update sees fp32 all the same.
class EightBitRule : public Rule {
 public:
  /// Of state `index` of Rule::state().
  [[nodiscard]] virtual KeptIn kept_in(const ParamFacts& facts, std::size_t index) const = 0;
  /// The conversions from and to eight bits are kernels of the host.
  [[nodiscard]] bool host_only() const override { return true; }
};

/// Of any rule.
inline KeptIn kept_in(const Rule& rule, const ParamFacts& facts, std::size_t index) {
  const auto* const narrow = dynamic_cast<const EightBitRule*>(&rule);
  return narrow == nullptr ? KeptIn::Type : narrow->kept_in(facts, index);
}

}  // namespace tessera::optim

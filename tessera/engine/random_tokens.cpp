// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/random_tokens.h"

#include <algorithm>

#include "tessera/base/philox.h"

namespace tessera::engine {

bool RandomTokens::get(std::int64_t index,
                       std::int64_t* ids,
                       std::int64_t* labels,
                       std::int64_t* mask) const {
  const Philox random{static_cast<std::uint64_t>(index)};
  for (std::int64_t t = 0; t <= length_; ++t) {
    const auto id = static_cast<std::int64_t>(random(static_cast<std::uint64_t>(t))[0] %
                                              static_cast<std::uint32_t>(vocab_));
    if (t < length_) ids[t] = id;
    if (t > 0) labels[t - 1] = id;
  }
  std::fill(mask, mask + length_, 1);
  return false;
}

}  // namespace tessera::engine

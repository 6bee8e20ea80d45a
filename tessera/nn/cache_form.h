// SPDX-License-Identifier: Apache-2.0
// The forms in which a paged KV cache stores keys and values.
#pragma once

#include <cstdint>

namespace tessera::nn {

/// Same is the dtype in which keys and values are computed. Int8 has a scale for each token and
/// head.
enum class CacheForm : std::uint8_t { Same, BF16, Int8 };

}  // namespace tessera::nn

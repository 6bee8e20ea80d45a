// SPDX-License-Identifier: Apache-2.0
// How a paged KV cache stores keys and values.
#pragma once

#include <cstdint>

namespace tessera::nn {

/// Same: in the dtype in which they are computed. Int8: with a scale for each token and head.
enum class CacheForm : std::uint8_t { Same, BF16, Int8 };

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// The values of layer_types, which are also Hugging Face's.
#pragma once

namespace tessera::models {

inline constexpr const char* kSlidingAttention = "sliding_attention";
inline constexpr const char* kFullAttention = "full_attention";

}  // namespace tessera::models

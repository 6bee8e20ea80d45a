// SPDX-License-Identifier: Apache-2.0
// Words of layer_types, which are Hugging Face's too.
#pragma once

namespace tessera::models {

inline constexpr const char* kSlidingAttention = "sliding_attention";
inline constexpr const char* kFullAttention = "full_attention";

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// Rotary scaling "longrope" in GGUF files: two tensors of factors, of which programs choose one by
// the length of the context, and a factor of sines and cosines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/gguf/file.h"

namespace tessera::interop {

inline constexpr const char *kLongFactors = "rope_factors_long.weight",
                            *kShortFactors = "rope_factors_short.weight";

struct LongRope {
  std::int64_t original_length = 0;  ///< up to it the short factors are used
  double scale = 1;                  ///< of sines and cosines
  std::vector<float> long_factors, short_factors;
};

/// The scaling of a config.json. `mscale`: as models::GgufNames::LongRope. Throws Error{Format} if
/// factors are missing and Error{Unsupported} for two factors of sines and cosines.
LongRope long_rope_of(const json::Value& rope, bool mscale);
/// The factors in a file for heads with that many pairs of rotated channels. Throws Error{Format}
/// for others.
LongRope long_rope_in(const GgufFile& file, std::int64_t pairs);
/// The scaling for a config.json, with the shortest numbers that fp32 rounds to those of the file.
/// `positions`: those of the model, from which the default of attention_factor follows.
json::Value config_of(const LongRope& rope, bool mscale, std::int64_t positions);

}  // namespace tessera::interop

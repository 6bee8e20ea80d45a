// SPDX-License-Identifier: Apache-2.0
// The numbers of MXFP4: codes of four bits that a power of two multiplies, one for each 32 of them.
// Source: Open Compute Project 2023, "OCP microscaling formats (MX) specification".
#pragma once

#include <array>

namespace tessera {

/// The number of each code: a sign, two bits of exponent and one of mantissa.
inline constexpr std::array<float, 16> kMxfp4Values = {0.0F,
                                                       0.5F,
                                                       1.0F,
                                                       1.5F,
                                                       2.0F,
                                                       3.0F,
                                                       4.0F,
                                                       6.0F,
                                                       -0.0F,
                                                       -0.5F,
                                                       -1.0F,
                                                       -1.5F,
                                                       -2.0F,
                                                       -3.0F,
                                                       -4.0F,
                                                       -6.0F};
/// The exponent of a power is its byte minus this.
inline constexpr int kMxfp4Bias = 127;

}  // namespace tessera

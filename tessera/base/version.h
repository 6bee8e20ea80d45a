// SPDX-License-Identifier: Apache-2.0
// The version of tessera.
#pragma once

namespace tessera {

inline constexpr const char* kTesseraVersion = "0.1.0";

}  // namespace tessera

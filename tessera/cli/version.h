// SPDX-License-Identifier: Apache-2.0
// The version of the program.
#pragma once

#include "tessera/base/version.h"

namespace tessera::cli {

inline constexpr const char* kVersion = kTesseraVersion;

}  // namespace tessera::cli

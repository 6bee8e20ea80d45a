// SPDX-License-Identifier: Apache-2.0
// What tessera convert --overwrite may replace.
#pragma once

#include <filesystem>

namespace tessera::cli {

/// Passes where a conversion of `source` may replace what stands at `target`: an empty folder, a
/// file or folder of whose every name and mark a conversion is known to write, and none that the
/// source is read from. Error{Config} names what is in the way.
void require_replaceable(const std::filesystem::path& target, const std::filesystem::path& source);

}  // namespace tessera::cli

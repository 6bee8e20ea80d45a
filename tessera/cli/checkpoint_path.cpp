// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/checkpoint_path.h"

#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera::cli {

namespace fs = std::filesystem;

std::vector<fs::path> checkpoints_at(const fs::path& path) {
  std::error_code failed;
  TESSERA_REQUIRE(fs::exists(path, failed),
                  Format,
                  fmt::format("{} does not exist", path.string()),
                  "name a run folder or one of its checkpoints/step-NNNNNNNN");
  return checkpoint::found_at(path);
}

}  // namespace tessera::cli

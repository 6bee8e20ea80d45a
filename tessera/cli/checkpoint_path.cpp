// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/checkpoint_path.h"

#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/hub.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/cli/terminal.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/interop/run_checkpoint.h"
#include "tessera/launch/launch.h"

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

void add_last(Arguments& arguments, bool* last) {
  arguments.flag("--last",
                 *last,
                 "Read a run's newest checkpoint even if its training stopped early [the best]");
}

fs::path model_at(const fs::path& path, bool last, const Common& common) {
  const interop::ChosenCheckpoint chosen =
      interop::chosen_checkpoint(hub::model_path(path.string()), last);
  const auto launcher = hosts::detect_launcher();
  const bool first = !launcher || launcher->rank == 0;
  if (!chosen.why.empty() && !common.quiet && first) {
    const std::string newest = chosen.newest.filename().string();
    print_note("reads " + chosen.why +
               (newest.empty() ? "" : fmt::format(" (--last: the newest, {})", newest)));
  }
  return chosen.path;
}

}  // namespace tessera::cli

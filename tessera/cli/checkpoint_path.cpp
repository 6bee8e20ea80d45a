// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/checkpoint_path.h"

#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/hub.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/cli/terminal.h"
#include "tessera/engine/eval_history.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// The best checkpoint of a run whose newest one says that the training stopped early.
std::optional<fs::path> best_of_stopped(const fs::path& newest) {
  const auto best = checkpoint::found_at(newest.parent_path() / "best");
  if (best.empty() || best.front() == newest) return std::nullopt;
  if (!engine::stopped_early(checkpoint::Checkpoint(newest).meta())) return std::nullopt;
  return best.front();
}

}  // namespace

std::vector<fs::path> checkpoints_at(const fs::path& path) {
  std::error_code failed;
  TESSERA_REQUIRE(fs::exists(path, failed),
                  Format,
                  fmt::format("{} does not exist", path.string()),
                  "name a run folder or one of its checkpoints/step-NNNNNNNN");
  return checkpoint::found_at(path);
}

ChosenCheckpoint chosen_checkpoint(const fs::path& named, bool last) {
  const fs::path path = hub::model_path(named.string());
  const std::vector<fs::path> all = checkpoint::found_at(path);
  if (all.empty() || checkpoint::is_checkpoint(path)) return {path, ""};
  const fs::path& newest = all.back();
  std::error_code failed;
  const bool is_file = fs::is_regular_file(path, failed);  // checkpoints/latest or checkpoints/best
  if (const auto best = last || is_file ? std::nullopt : best_of_stopped(newest)) {
    return {*best,
            fmt::format("{}: the best checkpoint, because the training stopped early (--last: the "
                        "newest, {})",
                        best->string(),
                        newest.filename().string())};
  }
  return {newest, newest.string()};
}

void add_last(Arguments& arguments, bool* last) {
  arguments.flag("--last",
                 *last,
                 "Read a run's newest checkpoint even if its training stopped early [the best]");
}

fs::path model_at(const fs::path& path, bool last, const Common& common) {
  const ChosenCheckpoint chosen = chosen_checkpoint(path, last);
  const auto launcher = hosts::detect_launcher();
  const bool first = !launcher || launcher->rank == 0;
  if (!chosen.why.empty() && !common.quiet && first) print_note("reads " + chosen.why);
  return chosen.path;
}

}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/run_checkpoint.h"

#include <optional>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/tasks/eval_history.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

/// The best checkpoint of a run whose newest one says that the training stopped early.
std::optional<fs::path> best_of_stopped(const fs::path& newest) {
  const auto best = checkpoint::found_at(newest.parent_path() / "best");
  if (best.empty() || best.front() == newest) return std::nullopt;
  const checkpoint::Checkpoint opened(newest);
  const checkpoint::Meta& meta = opened.meta();
  if (!tasks::stopped_early(meta.config, meta.extra)) return std::nullopt;
  return best.front();
}

}  // namespace

ChosenCheckpoint chosen_checkpoint(const fs::path& path, bool last) {
  const std::vector<fs::path> all = checkpoint::found_at(path);
  if (all.empty() || checkpoint::is_checkpoint(path)) return {path, "", {}};
  const fs::path& newest = all.back();
  std::error_code failed;
  const bool named = fs::is_regular_file(path, failed);  // checkpoints/latest or checkpoints/best
  if (const auto best = last || named ? std::nullopt : best_of_stopped(newest)) {
    return {
        *best,
        fmt::format("{}: the best checkpoint, because the training stopped early", best->string()),
        newest};
  }
  return {newest, newest.string(), {}};
}

}  // namespace tessera::interop

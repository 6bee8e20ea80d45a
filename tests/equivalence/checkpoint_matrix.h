// SPDX-License-Identifier: Apache-2.0
// Every layout loads what every other saved: the layouts, and what must be equal.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::testing {

/// Ranks 1 to 4 in each stage; the global batch is always 12 micro-batches of one sample. A new
/// kind of layout joins by being listed.
inline std::vector<Layout> saved_layouts() {
  std::vector<Layout> out;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3})
      out.push_back({.ranks = ranks, .accumulation = 12 / ranks, .micro_batch = 1, .stage = stage});
  }
  return out;
}

inline std::string name_of(const Layout& layout) {
  return fmt::format("{} ranks, stage {}", layout.ranks, layout.stage);
}

/// A run that is saved after some steps by each layout once, and goes on from there in any.
class SavedRuns {
 public:
  static constexpr std::int64_t kBefore = 3, kAfter = 10;

  /// The steps that follow in `load`, from what `save` wrote.
  Trace go_on(const Layout& save, const Layout& load) {
    return run_.train(load, kBefore + kAfter, {}, checkpoint_of(save));
  }
  /// Of a run that was never interrupted.
  const Trace& undisturbed() {
    if (undisturbed_.losses.empty())
      undisturbed_ = run_.train(saved_layouts().front(), kBefore + kAfter);
    return undisturbed_;
  }
  /// The tensors that `save` wrote, a line each.
  const std::vector<std::string>& digest_of(const Layout& save) {
    checkpoint_of(save);
    return digests_.at(name_of(save));
  }
  void expect_equal(const Layout& save, const Layout& load) {
    SCOPED_TRACE(name_of(save) + " -> " + name_of(load));
    const Trace& whole = undisturbed();

    const Trace rest = go_on(save, load);

    const std::vector<double> expected(whole.losses.begin() + kBefore, whole.losses.end());
    EXPECT_EQ(rest.losses, expected);
    EXPECT_EQ(rest.digest, whole.digest);
    EXPECT_EQ(rest.eval_losses, whole.eval_losses);
  }

 private:
  const std::filesystem::path& checkpoint_of(const Layout& layout) {
    const std::string name = name_of(layout);
    const auto found = checkpoints_.find(name);
    if (found != checkpoints_.end()) return found->second;
    const std::filesystem::path root = folder_.path() / std::to_string(checkpoints_.size());
    digests_[name] = run_.train(layout, kBefore, root).digest;
    return checkpoints_.emplace(name, *checkpoint::newest(root)).first->second;
  }

  TinyRun run_;
  files::TempDir folder_;
  Trace undisturbed_;
  std::map<std::string, std::filesystem::path> checkpoints_;
  std::map<std::string, std::vector<std::string>> digests_;
};

}  // namespace tessera::testing

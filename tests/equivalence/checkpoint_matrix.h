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

/// Ranks 1 to 4 in each stage, pipelines, tensor parallelism and both; the global batch is always
/// 12 micro-batches of one sample. A new kind of layout joins by being listed.
inline std::vector<Layout> saved_layouts() {
  std::vector<Layout> out;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3})
      out.push_back({.ranks = ranks, .accumulation = 12 / ranks, .micro_batch = 1, .stage = stage});
  }
  const auto add = [&](int ranks, int stage, const char* pipeline, int tensor, bool sequence) {
    const int replicas = ranks / tensor / (*pipeline == '\0' ? 1 : 2);
    out.push_back({.ranks = ranks,
                   .accumulation = 12 / replicas,
                   .micro_batch = 1,
                   .stage = stage,
                   .pipeline = pipeline,
                   .tensor = tensor,
                   .sequence = sequence});
  };
  add(2, 0, R"({"size": 2, "schedule": "1f1b"})", 1, false);
  add(4, 3, R"({"size": 2, "schedule": "zb-h1"})", 1, false);
  add(2, 1, "", 2, false);
  add(4, 3, "", 2, true);
  add(4, 0, R"({"size": 2, "schedule": "gpipe"})", 2, true);
  add(4, 1, "", 4, false);
  return out;
}

inline std::string name_of(const Layout& layout) {
  return fmt::format("{} ranks, stage {}{}{}{}",
                     layout.ranks,
                     layout.stage,
                     layout.pipeline.empty() ? "" : ", pipeline " + layout.pipeline,
                     layout.tensor > 1 ? fmt::format(", tensor {}", layout.tensor) : "",
                     layout.sequence ? ", sequence" : "");
}

/// The first layout that trains to the same bits as this one: tensor parallelism cuts sums
/// elsewhere, nothing else does.
inline Layout bits_of(const Layout& layout) {
  return layout.tensor > 1 ? layout : saved_layouts().front();
}

/// What the design promises of losses where sums are cut elsewhere.
constexpr double kOtherSums = 2e-5;

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
  /// To the bit what follows where either layout is replaced by one that trains to the same bits;
  /// and the undisturbed run, to the bit where nothing cuts sums elsewhere.
  void expect_equal(const Layout& save, const Layout& load) {
    SCOPED_TRACE(name_of(save) + " -> " + name_of(load));
    const Trace rest = go_on(save, load);

    const Trace& same = bits(save, load);
    EXPECT_EQ(rest.losses, same.losses);
    EXPECT_EQ(rest.digest, same.digest);
    EXPECT_EQ(rest.eval_losses, same.eval_losses);
    const Trace& whole = undisturbed();
    const std::vector<double> expected(whole.losses.begin() + kBefore, whole.losses.end());
    const bool exact = save.tensor == 1 && load.tensor == 1;
    ASSERT_EQ(rest.losses.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(rest.losses[i], expected[i], exact ? 0.0 : kOtherSums * expected[i]);
    if (exact) {
      EXPECT_EQ(rest.digest, whole.digest);
    }
  }

 private:
  const Trace& bits(const Layout& save, const Layout& load) {
    const Layout from = bits_of(save), to = bits_of(load);
    const std::string name = name_of(from) + " -> " + name_of(to);
    const auto found = bits_.find(name);
    return found != bits_.end() ? found->second
                                : bits_.emplace(name, go_on(from, to)).first->second;
  }
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
  std::map<std::string, Trace> bits_;
  std::map<std::string, std::filesystem::path> checkpoints_;
  std::map<std::string, std::vector<std::string>> digests_;
};

}  // namespace tessera::testing

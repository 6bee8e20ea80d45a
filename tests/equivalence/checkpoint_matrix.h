// SPDX-License-Identifier: Apache-2.0
// Every layout loads what every other saved: the layouts, and what must be equal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::test {

/// Ranks 1 to 4 in each stage, pipelines, tensor parallelism in each mode, shared tokens, and
/// products of these; the global batch is always 12 samples. A new kind of layout joins by being
/// listed.
inline std::vector<Layout> saved_layouts() {
  constexpr std::int64_t kSamples = 12;
  std::vector<Layout> out;
  const auto add = [&](int replicas, Layout layout) {
    layout.accumulation = kSamples / layout.micro_batch / replicas;
    out.push_back(layout);
  };
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3})
      add(ranks, {.ranks = ranks, .micro_batch = 1, .stage = stage});
  }
  const auto pipeline = [](const char* schedule) {
    return fmt::format(R"({{"size": 2, "schedule": "{}"}})", schedule);
  };
  add(1, {.ranks = 2, .micro_batch = 1, .stage = 0, .pipeline = pipeline("1f1b")});
  add(2, {.ranks = 4, .micro_batch = 1, .stage = 3, .pipeline = pipeline("zb-h1")});
  add(1, {.ranks = 2, .micro_batch = 1, .stage = 1, .pipeline = pipeline("interleaved")});
  add(2, {.ranks = 4, .micro_batch = 1, .stage = 2, .pipeline = pipeline("zb-v")});

  add(1, {.ranks = 2, .micro_batch = 1, .stage = 1, .tensor = 2});
  add(2, {.ranks = 4, .micro_batch = 1, .stage = 3, .tensor = 2, .sequence = true});
  add(1,
      {.ranks = 4,
       .micro_batch = 1,
       .stage = 0,
       .pipeline = pipeline("gpipe"),
       .tensor = 2,
       .sequence = true});
  add(1, {.ranks = 4, .micro_batch = 1, .stage = 1, .tensor = 4});

  add(1, {.ranks = 2, .micro_batch = 1, .stage = 1, .context = 2});
  add(2, {.ranks = 4, .micro_batch = 1, .stage = 3, .context = 2});
  add(1,
      {.ranks = 4,
       .micro_batch = 1,
       .stage = 0,
       .pipeline = pipeline("zb-h1"),
       .context = 2,
       .context_mode = "ulysses"});
  add(1,
      {.ranks = 4,
       .micro_batch = 1,
       .stage = 2,
       .tensor = 2,
       .sequence = true,
       .context = 2,
       .context_mode = "ulysses"});

  // Every rank of a grid has a sample.
  add(1, {.ranks = 4, .micro_batch = 2, .stage = 0, .tensor = 4, .mode = "2d"});
  add(2, {.ranks = 8, .micro_batch = 2, .stage = 3, .tensor = 4, .mode = "2d"});
  add(1,
      {.ranks = 4,
       .micro_batch = 2,
       .stage = 1,
       .pipeline = pipeline("1f1b"),
       .tensor = 2,
       .mode = "2.5d",
       .depth = 2});
  add(1, {.ranks = 8, .micro_batch = 4, .stage = 1, .tensor = 8, .mode = "2.5d", .depth = 2});
  add(1, {.ranks = 8, .micro_batch = 4, .stage = 3, .tensor = 8, .mode = "3d"});
  return out;
}

/// A name for how sums are split: layouts with the same name train to the same bits.
inline std::string sums_of(const Layout& layout) {
  const std::string tensor = layout.tensor == 1
                                 ? ""
                                 : fmt::format(", tensor {} {} deep {}{}",
                                               layout.mode,
                                               layout.tensor,
                                               layout.depth,
                                               layout.sequence ? " and sequence" : "");
  const std::string context =
      layout.context == 1 ? ""
                          : fmt::format(", context {} {}", layout.context_mode, layout.context);
  return fmt::format("micro-batches of {}{}{}", layout.micro_batch, tensor, context);
}

inline std::string name_of(const Layout& layout) {
  return fmt::format("{} ranks, stage {}{}, {}",
                     layout.ranks,
                     layout.stage,
                     layout.pipeline.empty() ? "" : ", pipeline " + layout.pipeline,
                     sums_of(layout));
}

/// The first layout that trains to the same bits as this one.
inline Layout first_of_its_sums(const Layout& layout) {
  const std::vector<Layout> all = saved_layouts();
  return *std::find_if(all.begin(), all.end(), [&](const Layout& other) {
    return sums_of(other) == sums_of(layout);
  });
}

/// A run that each layout saves once after some steps, and that continues from there in any layout.
class SavedRuns {
 public:
  static constexpr std::int64_t kBefore = 3, kAfter = 4;

  SavedRuns() {
    // With a threshold of 0 every parameter is sharded in stage 3.
    run_.set("zero_optimization.stage3_param_persistence_threshold", "0");
  }
  /// The tensors that `save` wrote, a line each.
  const std::vector<std::string>& digest_of(const Layout& save) {
    checkpoint_of(save);
    return digests_.at(name_of(save));
  }
  /// Checks that `load` restores what `save` wrote. The steps that follow have the same bits as
  /// with any other two layouts whose sums are split in the same way, and, if the way doesn't
  /// change, the same bits as a run that was never interrupted. The losses equal those of one rank
  /// in any case.
  void expect_equal(const Layout& save, const Layout& load) {
    SCOPED_TRACE(name_of(save) + " -> " + name_of(load));
    EXPECT_EQ(run_.train(load, kBefore, {}, checkpoint_of(save)).digest, digest_of(save));
    const Trace rest = go_on(save, load);

    const bool alike = sums_of(save) == sums_of(load);
    const Trace& same =
        alike ? undisturbed(load) : go_on_once(first_of_its_sums(save), first_of_its_sums(load));
    EXPECT_EQ(rest.losses, after(same));
    EXPECT_EQ(rest.digest, same.digest);
    EXPECT_EQ(rest.eval_losses, same.eval_losses);
    const std::vector<double> expected = after(undisturbed(saved_layouts().front()));
    ASSERT_EQ(rest.losses.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(rest.losses[i], expected[i], kLoss * expected[i]);
  }

 private:
  /// The steps that follow in `load`, from what `save` wrote.
  Trace go_on(const Layout& save, const Layout& load) {
    return run_.train(load, kBefore + kAfter, {}, checkpoint_of(save));
  }
  const Trace& go_on_once(const Layout& save, const Layout& load) {
    const std::string name = name_of(save) + " -> " + name_of(load);
    const auto found = follows_.find(name);
    return found != follows_.end() ? found->second
                                   : follows_.emplace(name, go_on(save, load)).first->second;
  }
  /// A run that was never interrupted, in the first layout that splits sums in the same way.
  const Trace& undisturbed(const Layout& layout) {
    const auto found = undisturbed_.find(sums_of(layout));
    return found != undisturbed_.end()
               ? found->second
               : undisturbed_
                     .emplace(sums_of(layout),
                              run_.train(first_of_its_sums(layout), kBefore + kAfter))
                     .first->second;
  }
  static std::vector<double> after(const Trace& trace) {
    return {trace.losses.end() - kAfter, trace.losses.end()};
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
  std::map<std::string, Trace> undisturbed_, follows_;
  std::map<std::string, std::filesystem::path> checkpoints_;
  std::map<std::string, std::vector<std::string>> digests_;
};

}  // namespace tessera::test

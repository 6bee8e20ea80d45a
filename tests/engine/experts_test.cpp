// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Experts that are divided among ranks: the memory of a rank, whatever its tokens choose.
#include <algorithm>
#include <cstdint>
#include <mutex>

#include "engine/on_engines.h"
#include "support/one_expert.h"
#include <gtest/gtest.h>

#include "tessera/memory/ledger.h"
#include "tessera/planner/activations.h"

namespace tessera::engine {
namespace {

using tessera::test::on_engines;
using tessera::test::run_with_one_expert;
using tessera::test::TinyRun;

/// The most that a rank needed for the passes of two steps, and what the plan predicts.
struct Need {
  std::int64_t measured = 0, planned = 0;
};
Need need_of(const TinyRun& run, const tessera::test::Layout& layout) {
  Need out;
  std::mutex mutex;
  on_engines(run, layout, [&](Engine& engine) {
    memory::Ledger ledger;  // of this rank, without the weights
    const memory::ScopedLedger counted(ledger);
    (void)engine.train_step();
    (void)engine.train_step();
    const memory::Usage usage = ledger.usage();
    const std::lock_guard lock(mutex);
    out.measured =
        std::max(out.measured, usage.peak[static_cast<std::size_t>(memory::Tag::Activations)]);
    out.planned = planner::predict_activations(engine.plan(), /*stage=*/0).training;
  });
  return out;
}

TEST(DividedExperts, StayWithinThePlanIfAllTokensChooseOne) {
  for (const char* recompute : {"\"none\"", "\"full\""}) {
    SCOPED_TRACE(recompute);
    TinyRun run = run_with_one_expert(64);
    run.set("parallel.expert", "4").set("activation_checkpointing.granularity", recompute);

    const Need need = need_of(run, {.ranks = 4, .micro_batch = 8});

    EXPECT_GT(need.measured, 0);
    EXPECT_LE(need.measured, need.planned);
  }
}

}  // namespace
}  // namespace tessera::engine

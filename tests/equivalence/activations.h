// SPDX-License-Identifier: Apache-2.0
// Activations that the ledger of a step counts, compared with the predicted ones.
#pragma once

#include <cstdio>
#include <string>

#include "equivalence/zero_cost.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/parallel/layout.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"

namespace tessera::test {

/// A step of rank 0 needs no more activations than were predicted for its stage, and at most a
/// quarter less; and no more memory in all than the plan says.
inline void expect_planned(const TinyRun& run, const Layout& layout, const std::string& what) {
  const Cost cost = cost_of(run, layout);
  const planner::Plan asked = run.plan(layout);
  parallel::Layout measured = asked.layout();
  measured.threads = 1;  // as in the measured step
  const planner::Plan plan = planner::with(asked, std::move(measured));
  const planner::Activations planned = planner::predict_activations(plan, /*stage=*/0);
  const std::int64_t kept = cost.usage.peak[static_cast<std::size_t>(memory::Tag::Activations)];
  const planner::MemoryEstimate need = planner::estimate_memory(plan);
  const std::int64_t all = need.total() - need.other;  // without that of a bare process
  EXPECT_LE(cost.peak, all) << what << ": " << need.text();
  EXPECT_EQ(planned.unknown, "") << what;
  EXPECT_LE(kept, planned.training) << what;
  EXPECT_GE(static_cast<double>(kept), 0.75 * static_cast<double>(planned.training)) << what;
  const auto above = [](std::int64_t predicted, std::int64_t used) {
    return 100.0 * (static_cast<double>(predicted) / static_cast<double>(used) - 1.0);
  };
  std::printf("%s: %lld predicted, %lld kept: %+.1f %%; in all %lld and %lld: %+.1f %%\n",
              what.c_str(),
              static_cast<long long>(planned.training),
              static_cast<long long>(kept),
              above(planned.training, kept),
              static_cast<long long>(all),
              static_cast<long long>(cost.peak),
              above(all, cost.peak));
}

}  // namespace tessera::test

// SPDX-License-Identifier: Apache-2.0
// Parameters that begin to train in the middle of a training: their updates count from there.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/parallel/state_beginnings.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;
using test::Layout;
using test::TinyRun;
using test::Trace;

constexpr std::int64_t kFrozenSteps = 3;
const Layout kLayout = {.ranks = 2, .accumulation = 2, .stage = 1};

TinyRun run_of(const std::string& type, bool frozen) {
  TinyRun run;
  // Adafactor computes its own learning rate.
  const std::string params = type == "Adafactor" ? "{}" : R"({"lr": 1e-3, "weight_decay": 0})";
  run.set("optimizer", R"({"type": ")" + type + R"(", "params": )" + params + "}");
  if (frozen) run.set("optimizer.groups", R"([{"pattern": "^wpe", "frozen": true}])");
  return run;
}

std::vector<float> positions_in(const fs::path& root) {
  const checkpoint::Checkpoint opened(*checkpoint::newest(root));
  const auto& tensors = opened.tensors();
  const auto found = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor.name == "wpe.weight";
  });
  return opened.values(*found);
}

// AdamW's first update with bias correction is the rate times the gradient's sign, whatever its
// betas: both means are of one gradient.
TEST(Unfrozen, TheFirstUpdateOfAParameterIsItsFirstWheneverItComes) {
  const files::TempDir dir;
  const fs::path before = dir.path() / "before", after = dir.path() / "after";
  (void)run_of("AdamW", true).train(kLayout, kFrozenSteps, before);

  const Trace trace =
      run_of("AdamW", false).train(kLayout, kFrozenSteps + 1, after, *checkpoint::newest(before));

  const std::vector<float> from = positions_in(before), to = positions_in(after);
  double most = 0;
  for (std::size_t i = 0; i < from.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(to[i]) - static_cast<double>(from[i])));
  EXPECT_NEAR(most / trace.rates.back(), 1.0, 1e-3);  // eps next to the gradient, and fp32 rounding
  const checkpoint::Checkpoint saved(*checkpoint::newest(after));
  EXPECT_EQ(parallel::updates_before(saved, "wpe.weight"), kFrozenSteps);
  EXPECT_EQ(parallel::updates_before(saved, "wte.weight"), 0);
}

TEST(Unfrozen, ItsCountContinuesOverSavesInEveryLayout) {
  for (const char* type : {"AdamW", "Lamb", "Adafactor"}) {
    SCOPED_TRACE(type);
    const files::TempDir dir;
    const fs::path before = dir.path() / "before", between = dir.path() / "between";
    (void)run_of(type, true).train(kLayout, kFrozenSteps, before);
    const TinyRun run = run_of(type, false);
    const Trace whole = run.train(kLayout, kFrozenSteps + 4, {}, *checkpoint::newest(before));

    (void)run.train({.ranks = 2, .accumulation = 2, .stage = 3},
                    kFrozenSteps + 2,
                    between,
                    *checkpoint::newest(before));
    const Trace rest = run.train({.ranks = 4, .accumulation = 1, .stage = 0},
                                 kFrozenSteps + 4,
                                 {},
                                 *checkpoint::newest(between));

    EXPECT_EQ(rest.digest, whole.digest);
    EXPECT_EQ(rest.eval_losses, whole.eval_losses);
  }
}

TEST(Unfrozen, ABeginningThatLiesBehindTheCheckpointIsRefused) {
  const files::TempDir dir;
  double updates = 5;
  const std::vector<std::int64_t> one = {1};
  const checkpoint::PieceBytes piece{parallel::beginning_of("w"),
                                     DType::F64,
                                     one,
                                     {mesh::whole(one), 0, 1},
                                     std::as_writable_bytes(std::span(&updates, 1))};
  checkpoint::Meta meta;
  meta.step = 6;
  meta.config = json::Value::object();
  meta.extra = json::Value::object({{"skipped", json::Value::integer(2)}});
  const checkpoint::Checkpoint saved(
      checkpoint::save(dir.path(), meta, {&piece, 1}, checkpoint::Ranks()));

  EXPECT_THROW(parallel::updates_before(saved, "w"), Error);
}

}  // namespace
}  // namespace tessera::engine

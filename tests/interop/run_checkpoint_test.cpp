// SPDX-License-Identifier: Apache-2.0
// Which checkpoint of a run a command reads.
#include "tessera/interop/run_checkpoint.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::interop {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ChosenCheckpoints : public ::testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path run() const { return dir_.path(); }
  [[nodiscard]] std::filesystem::path root() const { return run() / "checkpoints"; }
  [[nodiscard]] std::filesystem::path at(std::int64_t step) const {
    return root() / checkpoint::step_name(step);
  }
  /// A checkpoint of a training with a patience of two evaluations, of which `without_gain` had no
  /// gain.
  void save(std::int64_t step, std::int64_t without_gain) const {
    std::vector<float> w = {1.0F};
    const std::vector<checkpoint::PieceBytes> pieces = {{"w",
                                                         DType::F32,
                                                         {1},
                                                         mesh::Piece{mesh::whole({1}), 0, 1},
                                                         std::as_writable_bytes(std::span(w))}};
    checkpoint::Meta meta;
    meta.step = step;
    meta.config = json::parse(R"({"eval": {"every": 3, "patience": 2}})", "c");
    meta.extra = json::Value::object(
        {{"evaluations",
          json::Value::object({{"metric", json::Value::string("loss")},
                               {"mode", json::Value::string("min")},
                               {"without_gain", json::Value::integer(without_gain)},
                               {"gain_step", json::Value::integer(3)},
                               {"last_step", json::Value::integer(step)},
                               {"best_step", json::Value::integer(3)},
                               {"best_value", json::Value::number(1.5)}})}});
    checkpoint::save(root(), meta, pieces, {});
  }

 private:
  files::TempDir dir_;
};

TEST_F(ChosenCheckpoints, OfARunThatStoppedEarlyAreTheBest) {
  save(3, 0);
  save(9, 2);
  checkpoint::name_best(root(), 3);

  for (const auto& path : {run(), root()}) {
    EXPECT_EQ(chosen_checkpoint(path, false).path, at(3));
    EXPECT_THAT(
        chosen_checkpoint(path, false).why,
        HasSubstr("step-00000003: the best checkpoint, because the training stopped early"));
    EXPECT_EQ(chosen_checkpoint(path, true).path, at(9));
    EXPECT_EQ(chosen_checkpoint(path, true).why, at(9).string());
  }
}

TEST_F(ChosenCheckpoints, OfARunThatWentToItsEndAreTheNewest) {
  save(3, 0);
  save(9, 1);
  checkpoint::name_best(root(), 3);

  EXPECT_EQ(chosen_checkpoint(run(), false).path, at(9));
}

TEST_F(ChosenCheckpoints, ThatWereNamedAreTaken) {
  save(3, 0);
  save(9, 2);
  checkpoint::name_best(root(), 3);

  EXPECT_EQ(chosen_checkpoint(at(9), false).path, at(9));
  EXPECT_THAT(chosen_checkpoint(at(9), false).why, IsEmpty());
  EXPECT_EQ(chosen_checkpoint(root() / "latest", false).path, at(9));
  EXPECT_EQ(chosen_checkpoint(root() / "best", false).path, at(3));
}

TEST_F(ChosenCheckpoints, OfOtherFoldersAreTheFolders) {
  EXPECT_EQ(chosen_checkpoint(run(), false).path, run());
  EXPECT_THAT(chosen_checkpoint(run(), false).why, IsEmpty());
  EXPECT_EQ(chosen_checkpoint(run() / "none", false).path, run() / "none");
}

}  // namespace
}  // namespace tessera::interop

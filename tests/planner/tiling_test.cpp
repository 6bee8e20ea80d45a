// SPDX-License-Identifier: Apache-2.0
// The key `tiling`: what it refuses, and the memory of a plan with it.
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/block.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Plan tiled_plan(const std::string& tiling, const std::string& more = "", int ranks = 1) {
  const std::string text =
      R"({"model": {"preset": "nano"}, "data": {"train": "a.txt", "sequence_length": 128},
          "train_batch_size": 4, "tiling": )" +
      tiling + more + "}";
  return make_plan(json::parse(text, "c.json"), ranks, "my.json");
}

struct BadTiling {
  const char* tiling;
  const char* what;
  const char* more = "";
  int ranks = 1;
};

TEST(Tiling, IsRefusedWhereItCannotWork) {
  for (const auto& [tiling, what, more, ranks] : {
           BadTiling{R"({"wte": [64, 8]})", "has 256 rows, and 512 tiles"},
           BadTiling{R"({"wte": [1, 0]})", "as [in_splits, out_splits]"},
           BadTiling{R"({"wte": "8"})", "as [in_splits, out_splits]"},
           BadTiling{R"({"wte": 257})", "has 256 rows, and 257 tiles"},
           BadTiling{R"({"wtf": 8})", "wte"},
           BadTiling{R"({"ln_f": 8})", "is a vector"},
           BadTiling{"{}", "a number of elements"},
           BadTiling{"true", "a number of elements"},
           BadTiling{"1000", "fewer than a chunk"},
           BadTiling{"100000000", "no weight that can be divided has more"},
           BadTiling{R"({"wte": 4})",
                     "reads the whole weight at once",
                     R"(, "optimizer": {"type": "Lamb", "params": {"lr": 0.001}})"},
           BadTiling{R"({"*.mlp.*": 4})",
                     "reads the whole weight at once",
                     R"(, "optimizer": {"type": "Muon", "params": {"lr": 0.001}})"},
           BadTiling{R"({"wte": 4})",
                     "exchange whole parameters",
                     R"(, "optimizer": {"type": "OneBitAdam", "params": {"lr": 0.001}})"},
           BadTiling{R"({"wte": 4})", "sparse_gradients", R"(, "sparse_gradients": true)"},
           BadTiling{R"({"wte": 4})",
                     "ranks that divide experts",
                     R"(, "zero_optimization": {"stage": 3}, "parallel": {"expert": 2})",
                     2},
           BadTiling{R"({"wte": 4})",
                     "ranks that share the layers",
                     R"(, "parallel": {"tensor": {"size": 2}})",
                     2},
       }) {
    SCOPED_TRACE(tiling);
    try {
      (void)tiled_plan(tiling, more, ranks);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(exit_code(error.kind()), exit_code(Error::Kind::Config));
      EXPECT_THAT(error.text(), AllOf(HasSubstr("tiling"), HasSubstr(what)));
    }
  }
}

// A name that stands for one weight does what it says, or is refused.
TEST(Tiling, OfAWeightThatIsTooSmallIsRefused) {
  const auto plan = [](const char* tiling) {
    return make_plan(json::parse(std::string(R"({"model": {"preset": "nano", "max_positions": 8},
            "data": {"train": "a.txt", "sequence_length": 8}, "train_batch_size": 4, "tiling": )") +
                                     tiling + "}",
                                 "c.json"),
                     1,
                     "my.json");
  };
  try {
    (void)plan(R"({"wpe": 2})");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), AllOf(HasSubstr("wpe.weight is not divided"), HasSubstr("1024")));
  }
  EXPECT_NO_THROW((void)plan(R"({"wp*": 2, "wte": 2})"));
}

// As many tiles of the outputs need as little memory, and their products are no sums over tiles.
TEST(Tiling, TilesOfInputsAreMoreTilesOfOutputs) {
  const Plan plan = tiled_plan(R"({"wte": [2, 4]})"), outputs = tiled_plan(R"({"wte": 8})");

  EXPECT_THAT(plan.notes(), testing::Contains(HasSubstr("2 x out_splits 4 are 8 tiles")));
  EXPECT_THAT(outputs.notes(), testing::Not(testing::Contains(HasSubstr("out_splits"))));
  for (const auto& info : nn::parameters_of(plan.model().resolved.model))
    EXPECT_EQ(plan.model().rules.tiles(*info), outputs.model().rules.tiles(*info)) << info->name;
}

// One tile is gathered at a time, on every rank.
TEST(MemoryEstimates, OfGatheredTilesAreThoseOfOne) {
  const auto need = [](const std::string& tiling) {
    return estimate_memory(tiled_plan(tiling,
                                      R"(, "zero_optimization": {"stage": 3,
        "stage3_param_persistence_threshold": 0})",
                                      2));
  };
  // Blocks are gathered two at a time; the matrices of an MLP of nano are 2 x 128 x 512 values.
  constexpr std::int64_t kMlp = std::int64_t{2} * 128 * 512 * 4;

  EXPECT_LE(need(R"({"*.mlp.*": [1, 8]})").parameters, need("null").parameters - 2 * kMlp * 7 / 8);
}

// The table of nano, 256 x 128 values, is in 8 tiles of 32 rows.
TEST(MemoryEstimates, OfTilesOnADiskAreThoseOfOne) {
  const auto need = [](const std::string& tiling) {
    return estimate_memory(tiled_plan(tiling, R"(, "zero_optimization": {"stage": 3,
        "stage3_param_persistence_threshold": 0, "offload_param":
        {"device": "nvme", "nvme_path": "/tmp", "buffer_count": 1}}, "aio": {"block_size": 4096})"));
  };
  const MemoryEstimate whole = need("null"), tiled = need(R"({"*.mlp.*": [1, 8], "wte": [1, 8]})");

  EXPECT_LT(tiled.parameters, whole.parameters);
  // What is stored on the disk, gradients and states do not change.
  EXPECT_EQ(tiled.disk, whole.disk);
  EXPECT_EQ(tiled.gradients, whole.gradients);
  EXPECT_EQ(tiled.optimizer, whole.optimizer);
}

}  // namespace
}  // namespace tessera::planner

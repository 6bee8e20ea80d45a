// SPDX-License-Identifier: Apache-2.0
// Universal checkpoints as DeepSpeed's ds_to_universal.py writes them, constructed by hand: bare
// flat tensors of stage 3, and dicts of stages 1 and 2 with a second copy of tied tensors.
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "interop/foreign_support.h"
#include "interop/torch/torch_bytes.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/dtype.h"
#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace op = test::op;
using test::bytes_of;
using test::ForeignCheckpoints;
using test::values_of;
using Shape = std::vector<std::int64_t>;
using Values = std::vector<float>;

std::string size_of_torch(const Shape& shape) {
  return op::global("torch", "Size") + op::tuple({op::sizes(shape)}) + op::kCall;
}

std::string shapes(const std::vector<std::pair<std::string, Shape>>& listed) {
  std::vector<std::pair<std::string, std::string>> members;
  for (const auto& [name, shape] : listed)
    members.emplace_back(name, size_of_torch(shape));
  return op::dict(members);
}

class UniversalFolder : public ForeignCheckpoints {
 protected:
  UniversalFolder() {
    fs::create_directories(path("ds/global_step4/zero"));
    files::write_atomic(path("ds/latest_universal"), "global_step4");
  }
  [[nodiscard]] fs::path tag() const { return path("ds/global_step4"); }

  void write(const std::string& parameter,
             const std::string& what,
             const Values& values,
             const Shape& shape,
             bool bare) {
    fs::create_directories(tag() / "zero" / parameter);
    const std::string tensor =
        op::tensor(op::storage("FloatStorage", "0", static_cast<std::int64_t>(values.size())),
                   0,
                   shape,
                   row_major(shape));
    const std::string object =
        bare ? tensor : op::dict({{"cat_dim", op::integer(0)}, {"param", tensor}});
    files::write_atomic(tag() / "zero" / parameter / (what + ".pt"),
                        test::torch_zip(test::pickle_of(object), {bytes_of(values)}));
  }
  /// Like stage 3's files: no dict, no shape, no step.
  void write_flat(const std::string& parameter, const Values& values) {
    const Shape flat = {static_cast<std::int64_t>(values.size())};
    write(parameter, "fp32", values, flat, true);
    for (const char* state : {"exp_avg", "exp_avg_sq"})
      write(parameter, state, Values(values.size(), 0.5F), flat, true);
  }
  void write_states(const std::vector<std::pair<std::string, std::string>>& members,
                    const std::string& file = "mp_rank_00_model_states.pt") {
    std::vector<std::pair<std::string, std::string>> all = {{"global_steps", op::integer(4)},
                                                            {"global_samples", op::integer(16)}};
    all.insert(all.end(), members.begin(), members.end());
    files::write_atomic(tag() / file, test::torch_zip(test::pickle_of(op::dict(all))));
  }
  /// A table and the second copy of it that stages 1 and 2 write.
  void write_tied(const Values& head) {
    for (const char* what : {"fp32", "exp_avg", "exp_avg_sq"})
      write("wte.weight", what, kTable, {2, 2}, false);
    write("lm_head.weight", "fp32", head, {2, 2}, false);
  }
  const Values kTable = {1.0F, -2.0F, 0.3F, 1e-3F};
};

TEST_F(UniversalFolder, OfStageThreeHasTheShapesOfItsModelStates) {
  write_flat("w", {0, 1, 2, 3, 4, 5});
  write_flat("b", {6, 7});
  write_states({{"param_shapes", op::list_of({shapes({{"w", {2, 3}}}), shapes({{"b", {2}}})})}},
               "zero_pp_rank_0_mp_rank_00_model_states.pt");

  const Foreign read = *open_foreign(path("ds"));

  ASSERT_EQ(read.weights.size(), 2U);  // sorted by name: b, w
  EXPECT_EQ(read.weights[0].shape, (Shape{2}));
  EXPECT_EQ(read.weights[1].shape, (Shape{2, 3}));
  EXPECT_EQ(values_of(read.weights[1]), (Values{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(read.state.at("exp_avg")[1].shape, (Shape{2, 3}));
  EXPECT_EQ(read.state.at("exp_avg_sq")[1].shape, (Shape{2, 3}));
  EXPECT_EQ(read.step, 4);
}

TEST_F(UniversalFolder, OfStageThreeWithoutShapesIsRefused) {
  write_flat("w", {0, 1, 2, 3, 4, 5});
  refused(path("ds"), "no model_states next to zero/ say the shape of w");

  write_states({{"param_shapes", op::list_of({shapes({{"other", {6}}})})}});
  refused(path("ds"), "no model_states next to zero/ say the shape of w");

  write_states({{"param_shapes", op::list_of({shapes({{"w", {2, 4}}})})}});
  refused(path("ds"), "has 6 elements, and");

  const std::int64_t huge = std::int64_t{1} << 62;
  write_states({{"param_shapes", op::list_of({shapes({{"w", {huge, huge}}})})}});
  refused(path("ds"), "the shape of w is not a list of sizes");
}

TEST_F(UniversalFolder, ThatLostAParameterIsRefused) {
  write_flat("w", {0, 1});
  write_states({{"param_shapes", op::list_of({shapes({{"w", {2}}, {"b", {3}}})})}});
  refused(path("ds"), "has no folder of b");

  write_states({{"param_shapes", op::list_of({shapes({{"w", {2}}})})},
                {"frozen_param_shapes", shapes({{"wpe", {3}}})}});
  refused(path("ds"), "has no folder of wpe");
}

TEST_F(UniversalFolder, OfATiedModelHasOneTensorWithTwoNames) {
  Values bf16, fp16;
  for (const float value : kTable) {
    bf16.push_back(from_bf16(to_bf16(value)));
    fp16.push_back(from_fp16(to_fp16(value)));
  }
  ASSERT_NE(bf16, kTable);
  for (const Values& head : {kTable, bf16, fp16}) {
    write_tied(head);
    write_states({{"param_shapes", op::list_of({shapes({{"wte.weight", {2, 2}}})})},
                  {"shared_params", op::dict({{"lm_head.weight", op::text("wte.weight")}})}});

    const Foreign read = *open_foreign(path("ds"));

    ASSERT_EQ(read.weights.size(), 1U);
    EXPECT_EQ(values_of(read.weights[0]), kTable);
    EXPECT_EQ(read.weights[0].aliases, (std::vector<std::string>{"lm_head.weight"}));
  }
}

TEST_F(UniversalFolder, OfATiedModelWithoutModelStatesDropsTheEqualCopyAlone) {
  write_tied(kTable);
  EXPECT_EQ(open_foreign(path("ds"))->weights.size(), 1U);

  write_tied({1, 2, 3, 4});
  EXPECT_EQ(open_foreign(path("ds"))->weights.size(), 2U);
}

TEST_F(UniversalFolder, WhoseTiedCopyIsAnotherTensorIsRefused) {
  write_tied({1, 2, 3, 4});
  write_states({{"shared_params", op::dict({{"lm_head.weight", op::text("wte.weight")}})}});

  refused(path("ds"), "says that lm_head.weight is wte.weight");
}

TEST_F(UniversalFolder, WhoseNamesShareEachOtherKeepsBoth) {
  write_tied(kTable);
  write_states({{"shared_params",
                 op::dict({{"lm_head.weight", op::text("wte.weight")},
                           {"wte.weight", op::text("lm_head.weight")}})}});

  EXPECT_EQ(open_foreign(path("ds"))->weights.size(), 2U);
}

TEST_F(UniversalFolder, NextToTheCheckpointOfItsStageIsFoundByName) {
  write_flat("w", {0, 1});
  write_states({{"param_shapes", op::list_of({shapes({{"w", {2}}})})}});
  fs::create_directories(path("ds/global_step5"));
  files::write_atomic(path("ds/latest"), "global_step5");
  files::write_atomic(
      path("ds/global_step5/mp_rank_00_model_states.pt"),
      test::torch_zip(test::pickle_of(op::dict({{"global_steps", op::integer(5)}}))));

  EXPECT_EQ(open_foreign(path("ds"))->step, 5);
  EXPECT_EQ(open_foreign(path("ds"), kUniversalFormat)->step, 4);
}

}  // namespace
}  // namespace tessera::interop

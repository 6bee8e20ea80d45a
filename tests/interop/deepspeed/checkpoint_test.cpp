// SPDX-License-Identifier: Apache-2.0
// Folders as DeepSpeed's stages write them, constructed by hand: which data is read from them, and
// which folders are rejected.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "interop/foreign_support.h"
#include "interop/torch/torch_bytes.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace op = test::op;
using test::bytes_of;
using test::ForeignCheckpoints;
using test::values_of;

/// Stage 2 with two ranks; one parameter of 5 elements is split into 3 and 3, one of which is
/// padding.
class DeepSpeedFolder : public ForeignCheckpoints {
 protected:
  DeepSpeedFolder() {
    fs::create_directories(path("ds/global_step3"));
    files::write_atomic(path("ds/latest"), "global_step3");
    write_model(op::list_of({op::dict({{"w", op::tuple({op::integer(5)})}})}));
    write_rank(0, 3, 2);
    write_rank(1, 3, 2);
  }
  void write_model(const std::string& shapes,
                   const std::string& name = "mp_rank_00_model_states.pt") {
    files::write_atomic(
        path("ds/global_step3") / name,
        test::torch_zip(test::pickle_of(op::dict({{"module", op::kDict},
                                                  {"param_shapes", shapes},
                                                  {"global_steps", op::integer(3)},
                                                  {"global_samples", op::integer(12)}}))));
  }
  void write_rank(int rank,
                  std::int64_t numel,
                  std::int64_t count,
                  const std::string& prefix = "") {
    const auto flat = [&](const char* key) {
      return op::tensor(op::storage("FloatStorage", key, numel), 0, {numel}, {1});
    };
    const std::string state = op::dict(
        {{"single_partition_of_fp32_groups", op::list_of({flat("0")})},
         {"base_optimizer_state",
          op::dict({{"state",
                     "}(" + op::integer(0) +
                         op::dict({{"exp_avg", flat("1")}, {"step", op::integer(3)}}) + "u"}})},
         {"loss_scaler", scaler},
         {"partition_count", op::list_of({op::integer(count)})}});
    std::vector<float> masters, moments;
    for (std::int64_t i = 0; i < numel; ++i) {
      masters.push_back(static_cast<float>(rank * 3 + i));
      moments.push_back(static_cast<float>(100 + rank * 3 + i));
    }
    files::write_atomic(
        path("ds/global_step3") /
            fmt::format("{}zero_pp_rank_{}_mp_rank_00_optim_states.pt", prefix, rank),
        test::torch_zip(test::pickle_of(op::dict({{"optimizer_state_dict", state}})),
                        {bytes_of(masters), bytes_of(moments)}));
  }
  /// Writes an object of DeepSpeed's loss_scaler.py with these members.
  void scale_by(const char* type, const std::vector<std::pair<std::string, std::string>>& members) {
    scaler =
        op::global("deepspeed.runtime.fp16.loss_scaler", type) + ")\x81" + op::dict(members) + "b";
    write_rank(0, 3, 2);
    write_rank(1, 3, 2);
  }
  std::string scaler = "N";
};

TEST_F(DeepSpeedFolder, OfFp16KeepsItsDynamicLossScale) {
  const std::string scale("G\x40\xf0\0\0\0\0\0\0", 9);  // 65536.0
  scale_by("DynamicLossScaler",
           {{"cur_scale", scale},
            {"dynamic", "\x88"},
            {"cur_iter", op::integer(7)},
            {"last_overflow_iter", op::integer(4)},
            {"scale_factor", op::integer(2)},
            {"scale_window", op::integer(1000)},
            {"min_scale", op::integer(1)},
            {"delayed_shift", op::integer(2)},
            {"cur_hysteresis", op::integer(1)},
            {"consecutive_hysteresis", "\x89"},
            {"raise_error_at_min_scale", "\x88"},
            {"dtype", op::global("torch", "float16")}});

  const Foreign read = *open_foreign(path("ds"));

  EXPECT_EQ(at_path(read.loss_scaler, "scaler")->as_string(), "deepspeed");
  EXPECT_EQ(number_at(read.loss_scaler, "scale"), 65536.0);
  EXPECT_EQ(integer_at(read.loss_scaler, "iteration", -9), 7);
  EXPECT_EQ(integer_at(read.loss_scaler, "last_overflow", -9), 4);
  EXPECT_EQ(integer_at(read.loss_scaler, "hysteresis_left", -9), 1);
}

TEST_F(DeepSpeedFolder, OfAFixedLossScaleLeavesItToTheConfiguration) {
  scale_by("LossScaler", {{"cur_scale", op::integer(128)}, {"dynamic", "\x89"}});

  EXPECT_TRUE(open_foreign(path("ds"))->loss_scaler.is_null());
}

TEST_F(DeepSpeedFolder, OfAnOldVersionIsReadByTheOrderOfItsShapes) {
  const Foreign read = *open_foreign(path("ds"));

  ASSERT_EQ(read.weights.size(), 1U);
  EXPECT_EQ(values_of(read.weights[0]), (std::vector<float>{0, 1, 2, 3, 4}));
  EXPECT_EQ(values_of(read.state.at("exp_avg")[0]), (std::vector<float>{100, 101, 102, 103, 104}));
  EXPECT_EQ(read.step, 3);
  EXPECT_EQ(read.samples, 12);
}

TEST_F(DeepSpeedFolder, WithoutARankIsRefused) {
  fs::remove(path("ds/global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt"));
  refused(path("ds"), "optim_states of rank 0 are missing");
}

TEST_F(DeepSpeedFolder, WithoutItsLastRankIsRefused) {
  fs::remove(path("ds/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"));
  refused(path("ds"), "of a training on 2 ranks");
}

TEST_F(DeepSpeedFolder, WithTwoFilesOfARankIsRefused) {
  write_rank(1, 3, 2, "bf16_");
  refused(path("ds"), "rank 1 has another file too");
}

TEST_F(DeepSpeedFolder, ThatEndsEarlyIsRefused) {
  write_rank(1, 1, 2);
  refused(path("ds"), "end before parameter w");
}

TEST_F(DeepSpeedFolder, ThatHoldsMoreThanItsParametersIsRefused) {
  write_rank(1, 300, 2);
  refused(path("ds"), "belong to no parameter");
}

TEST_F(DeepSpeedFolder, WithShapesThatOverflowIsRefused) {
  const std::string huge = op::integer(std::int64_t{1} << 62);
  write_model(op::list_of({op::dict({{"w", op::tuple({huge, huge})}})}));
  refused(path("ds"), "is not a list of sizes");
  write_model(op::list_of({op::dict({{"w", op::tuple({op::integer(-1)})}})}));
  refused(path("ds"), "is not a list of sizes");
  write_model(op::list_of({op::dict({{"w", op::text("five")}})}));
  refused(path("ds"), "is not a list of sizes");
  write_model(op::integer(7));
  refused(path("ds"), "are not a list");
}

TEST_F(DeepSpeedFolder, OfAnotherParallelismIsRefusedByName) {
  for (const auto& [name, reason] : std::vector<std::pair<std::string, std::string>>{
           {"layer_00-model_00-model_states.pt", "pipelines"},
           {"layer_0_expert_1_mp_rank_01_model_states.pt", "tensor parallelism"},
           {"zero_pp_rank_0_mp_rank_01_optim_states.pt", "tensor parallelism"},
           {"mp_rank_01_model_states.pt", "tensor parallelism"}}) {
    files::write_atomic(path("ds/global_step3") / name, "x");
    refused(path("ds"), reason);
    fs::remove(path("ds/global_step3") / name);
  }
}

/// A folder with two layers of two experts, as the MoE layer of DeepSpeed writes it.
class DeepSpeedExperts : public ForeignCheckpoints {
 protected:
  DeepSpeedExperts() {
    fs::create_directories(path("ds/global_step3"));
    files::write_atomic(path("ds/latest"), "global_step3");
    files::write_atomic(
        tag() / "mp_rank_00_model_states.pt",
        test::torch_zip(test::pickle_of(op::dict(
                            {{"module",
                              op::dict({{"h.0.mlp.deepspeed_moe.gate.wg.weight", tensor("0")},
                                        {"h.1.mlp.deepspeed_moe.gate.wg.weight", tensor("1")}})},
                             {"num_experts", op::list_of({op::integer(2), op::integer(2)})},
                             {"global_steps", op::integer(3)}})),
                        {bytes_of({1, 2}), bytes_of({3, 4})}));
    for (int layer = 0; layer < 2; ++layer) {
      for (int expert = 0; expert < 2; ++expert)
        write_expert(layer, expert, static_cast<float>(10 * layer + expert));
    }
    // The parts of ZeRO, with which files of the ranks of experts say nothing.
    files::write_atomic(tag() / "expp_rank_0_mp_rank_00_optim_states.pt", "x");
    files::write_atomic(tag() / kParts, "x");
  }
  static constexpr const char* kParts = "zero_pp_rank_0_mp_rank_00_optim_states.pt";
  /// Torch's optimizer of one of two ranks, each with one expert of both layers, whose moments are
  /// 100 * rank + number. `groups`: of its parameters.
  void write_optimizer(int rank, int parameters, const std::string& groups, std::int64_t step = 3) {
    std::string state = "}(";
    std::vector<std::string> moments;
    for (int i = 0; i < parameters; ++i) {
      const std::string storage = std::to_string(i);
      state += op::integer(i) +
               op::dict({{"step", op::integer(step)}, {"exp_avg", tensor(storage.c_str())}});
      moments.push_back(bytes_of({static_cast<float>(100 * rank + i), 0}));
    }
    files::write_atomic(
        tag() / fmt::format("expp_rank_{}_mp_rank_00_optim_states.pt", rank),
        test::torch_zip(
            test::pickle_of(op::dict(
                {{"optimizer", op::dict({{"state", state + "u"}, {"param_groups", groups}})}})),
            moments));
  }
  static std::string group(bool of_experts, int parameters) {
    const std::string no = "\x89", yes = "\x88";
    return op::dict({{"lr", op::integer(1)},
                     {"moe", of_experts ? yes : no},
                     {"params",
                      op::list_of(std::vector<std::string>(static_cast<std::size_t>(parameters),
                                                           op::integer(0)))}});
  }
  [[nodiscard]] fs::path tag() const { return path("ds/global_step3"); }
  static std::string tensor(const char* storage) {
    return op::tensor(op::storage("FloatStorage", storage, 2), 0, {2}, {1});
  }
  void write_expert(int layer, int expert, float value) {
    files::write_atomic(
        tag() / fmt::format("layer_{}_expert_{}_mp_rank_00_model_states.pt", layer, expert),
        test::torch_zip(
            test::pickle_of(op::dict(
                {{fmt::format("h.{}.mlp.deepspeed_moe.experts.deepspeed_experts.{}.up_proj.weight",
                              layer,
                              expert),
                  tensor("0")}})),
            {bytes_of({value, -value})}));
  }
};

TEST_F(DeepSpeedExperts, AreReadFromTheFileOfEach) {
  const Foreign read = *open_foreign(path("ds"));

  ASSERT_EQ(read.weights.size(), 6U);
  EXPECT_EQ(read.weights[1].name, "h.1.mlp.gate.weight");
  EXPECT_EQ(values_of(read.weights[1]), (std::vector<float>{3, 4}));
  EXPECT_EQ(read.weights[5].name, "h.1.mlp.experts.1.up_proj.weight");
  EXPECT_EQ(values_of(read.weights[5]), (std::vector<float>{11, -11}));
  EXPECT_EQ(read.step, 3);
  EXPECT_TRUE(read.state.empty());
  EXPECT_NE(read.what.find("weights alone"), std::string::npos) << read.what;
}

// One group has a layer's experts after its router; DeepSpeed's own groups have them at the end.
TEST_F(DeepSpeedExperts, HaveTheMomentsOfTheRankThatTrainsThem) {
  fs::remove(tag() / kParts);
  for (const bool apart : {false, true}) {
    SCOPED_TRACE(apart);
    const std::string groups =
        apart ? op::list_of({group(false, 2), group(true, 2)}) : op::list_of({group(false, 4)});
    write_optimizer(0, 4, groups);
    write_optimizer(1, 4, groups);

    const Foreign read = *open_foreign(path("ds"));

    std::map<std::string, float> moments;
    for (const checkpoint::StreamedTensor& tensor : read.state.at("exp_avg"))
      EXPECT_TRUE(moments.emplace(tensor.name, values_of(tensor).at(0)).second) << tensor.name;
    const float second = apart ? 1 : 2, first_expert = apart ? 2 : 1;
    EXPECT_EQ(
        moments,
        (std::map<std::string, float>{{"h.0.mlp.gate.weight", 0.F},
                                      {"h.1.mlp.gate.weight", second},
                                      {"h.0.mlp.experts.0.up_proj.weight", first_expert},
                                      {"h.1.mlp.experts.0.up_proj.weight", 3.F},
                                      {"h.0.mlp.experts.1.up_proj.weight", 100 + first_expert},
                                      {"h.1.mlp.experts.1.up_proj.weight", 103.F}}));
    EXPECT_EQ(read.what.find("weights alone"), std::string::npos) << read.what;
    EXPECT_EQ(read.skipped, 0);
  }
}

TEST_F(DeepSpeedExperts, KeepTheirWeightsAloneWhereTheOptimizerIsNotKnown) {
  fs::remove(tag() / kParts);
  const auto reason = [&] {
    const Foreign read = *open_foreign(path("ds"));
    EXPECT_TRUE(read.state.empty());
    EXPECT_EQ(read.weights.size(), 6U);
    return read.what;
  };
  const std::string one = op::list_of({group(false, 4)}),
                    three = op::list_of({group(false, 1), group(false, 1), group(true, 2)});

  write_optimizer(0, 4, three);
  EXPECT_NE(reason().find("its 3 groups keep no names"), std::string::npos);
  write_optimizer(0, 4, one);
  EXPECT_NE(reason().find("of other parameters"), std::string::npos) << "one rank has 6 of them";
  write_optimizer(1, 4, one, 2);
  EXPECT_NE(reason().find("different numbers of updates"), std::string::npos);
  write_optimizer(1, 5, one);
  EXPECT_NE(reason().find("of other parameters"), std::string::npos);
  fs::remove(tag() / "expp_rank_0_mp_rank_00_optim_states.pt");
  refused(path("ds"), "optim_states of experts of rank 0 are missing");
}

TEST_F(DeepSpeedExperts, WithoutTheFileOfOneAreRefused) {
  fs::remove(tag() / "layer_1_expert_1_mp_rank_00_model_states.pt");
  refused(path("ds"), "layer_1_expert_1_mp_rank_00_model_states.pt is missing");
}

TEST_F(DeepSpeedExperts, ThatOccurTwiceAreRefused) {
  fs::copy_file(tag() / "layer_1_expert_1_mp_rank_00_model_states.pt",
                tag() / "layer_1_expert_2_mp_rank_00_model_states.pt");
  refused(path("ds"), "occurs in another file too");
}

TEST_F(DeepSpeedFolder, TakesWhatDoesNotTrainFromTheModule) {
  const auto tensor = [](const char* storage) {
    return op::tensor(op::storage("FloatStorage", storage, 2), 0, {2}, {1});
  };
  files::write_atomic(
      path("ds/global_step3/mp_rank_00_model_states.pt"),
      test::torch_zip(
          test::pickle_of(op::dict(
              {{"module",
                op::dict({{"w", tensor("0")}, {"head", tensor("0")}, {"frozen", tensor("1")}})},
               {"param_shapes", op::list_of({op::dict({{"w", op::tuple({op::integer(5)})}})})},
               {"frozen_param_shapes", op::kNone},
               {"shared_params", op::dict({{"head", op::text("w")}})}})),
          {bytes_of({8, 8}), bytes_of({6, 7})}));

  const Foreign read = *open_foreign(path("ds"));

  ASSERT_EQ(read.weights.size(), 2U);
  EXPECT_EQ(values_of(read.weights[0]), (std::vector<float>{0, 1, 2, 3, 4}));  // the master weights
  EXPECT_EQ(read.weights[0].aliases, (std::vector<std::string>{"head"}));
  EXPECT_EQ(read.weights[1].name, "frozen");
  EXPECT_EQ(values_of(read.weights[1]), (std::vector<float>{6, 7}));
  EXPECT_EQ(read.state.at("exp_avg").size(), 1U);
}

TEST_F(DeepSpeedFolder, WhoseLatestNamesNothingSaysSo) {
  files::write_atomic(path("ds/latest"), "global_step9");

  refused(path("ds"), "names the tag \"global_step9\", which is not there");
}

TEST_F(DeepSpeedFolder, WhoseLatestPointsOutsideOfItIsNotFollowed) {
  fs::create_directories(path("secret"));
  files::write_atomic(path("secret/mp_rank_00_model_states.pt"), "x");
  for (const char* tag : {"../secret", "/etc", "..", ".", "", "a/b"}) {
    files::write_atomic(path("ds/latest"), tag);
    EXPECT_FALSE(is_foreign(path("ds"))) << tag;
  }
}

}  // namespace
}  // namespace tessera::interop

// SPDX-License-Identifier: Apache-2.0
// Rare forms of DeepSpeed's checkpoints: stage 0, frozen parameters, moments listed by group, and
// groups that are reordered or padded in between.
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "interop/foreign_support.h"
#include "interop/gpt_files.h"
#include "interop/torch/torch_bytes.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace op = test::op;
namespace gpt = test::gpt;
using test::values_of;
using ::testing::HasSubstr;
using Values = std::vector<float>;

class DeepSpeedVariants : public test::ForeignCheckpoints {
 protected:
  DeepSpeedVariants() {
    fs::create_directories(tag());
    files::write_atomic(path("ds/latest"), "global_step3");
  }
  [[nodiscard]] fs::path tag() const { return path("ds/global_step3"); }
  [[nodiscard]] fs::path optimizer(int rank) const {
    return tag() / fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank);
  }
  static std::string stage(std::int64_t number) {
    return op::dict({{"zero_optimization", op::dict({{"stage", op::integer(number)}})}});
  }
  static std::string size_of_torch(std::int64_t rows) {
    return op::global("torch", "Size") + op::tuple({op::sizes({rows})}) + op::kCall;
  }
};

gpt::Tensor of(const Values& values) {
  return {{static_cast<std::int64_t>(values.size())}, values};
}

/// Returns a dict whose keys are 0, 1, ...
std::string numbered(const std::vector<std::string>& values) {
  std::string out = "}(";
  for (std::size_t i = 0; i < values.size(); ++i)
    out += op::integer(static_cast<std::int64_t>(i)) + values[i];
  return out + "u";
}

// Stage 0: a module, and torch's Adam with its state_dict.

class Stage0 : public DeepSpeedVariants {
 protected:
  /// Writes `groups` of these parameter numbers, and moments of two parameters with the given
  /// sizes.
  void write(const std::vector<std::vector<std::int64_t>>& groups,
             std::size_t first = 3,
             float updates_of_second = 2.0F) {
    gpt::File file;
    std::vector<std::string> states, described;
    for (const std::size_t count : {first, std::size_t{2}}) {
      const float base = states.empty() ? 10.0F : 20.0F;
      const float updates = states.empty() ? 2.0F : updates_of_second;
      states.push_back(op::dict({{"step", file.tensor({{}, {updates}})},
                                 {"exp_avg", file.tensor(of(Values(count, base)))},
                                 {"exp_avg_sq", file.tensor(of(Values(count, base + 1)))}}));
    }
    for (const auto& group : groups) {
      std::vector<std::string> numbers;
      for (const std::int64_t number : group)
        numbers.push_back(op::integer(number));
      described.push_back(op::dict({{"lr", gpt::number(0.125)}, {"params", op::list_of(numbers)}}));
    }
    const std::string table = file.tensor(of({1, 2, 3}));
    file.write(
        tag() / "mp_rank_00_model_states.pt",
        {{"module",
          op::dict(
              {{"w", table}, {"mask", file.tensor(of({9, 9}))}, {"b", file.tensor(of({4, 5}))}})},
         {"buffer_names", op::list_of({op::text("mask")})},
         {"optimizer",
          op::dict({{"state", numbered(states)}, {"param_groups", op::list_of(described)}})},
         {"param_shapes", op::kNone},
         {"global_steps", op::integer(3)},
         {"skipped_steps", op::integer(1)},
         {"global_samples", op::integer(24)},
         {"ds_config", stage(0)}});
  }
};

TEST_F(Stage0, IsReadWithTorchsOptimizer) {
  write({{0, 1}});

  const Foreign read = open_foreign(path("ds")).value();

  EXPECT_THAT(read.what, HasSubstr("ZeRO stage 0, 1 ranks"));
  ASSERT_EQ(read.weights.size(), 3U);  // the mask is a buffer, which has no moments
  EXPECT_EQ(values_of(read.weights[0]), (Values{1, 2, 3}));
  EXPECT_EQ(values_of(read.weights[2]), (Values{4, 5}));
  ASSERT_EQ(read.state.size(), 2U);
  const auto& moments = read.state.at("exp_avg");
  ASSERT_EQ(moments.size(), 2U);
  EXPECT_EQ(moments[0].name, "w");
  EXPECT_EQ(values_of(moments[0]), (Values{10, 10, 10}));
  EXPECT_EQ(moments[1].name, "b");
  EXPECT_EQ(values_of(moments[1]), (Values{20, 20}));
  EXPECT_EQ(values_of(read.state.at("exp_avg_sq")[1]), (Values{21, 21}));
  EXPECT_EQ(read.step, 3);
  EXPECT_EQ(read.skipped, 1);
  EXPECT_EQ(read.samples, 24);
  EXPECT_EQ(read.lr, 0.125);
}

TEST_F(Stage0, WhoseOptimizerIsNotUnderstoodGivesItsWeightsAndSaysWhy) {
  const auto without = [&](const std::string& reason) {
    const Foreign read = open_foreign(path("ds")).value();
    EXPECT_THAT(read.what, HasSubstr("its weights alone: of its optimizer's state " + reason));
    EXPECT_TRUE(read.state.empty());
    EXPECT_EQ(read.weights.size(), 3U);
    EXPECT_EQ(read.lr, std::nullopt);
  };
  write({{0}, {1}});
  without("its 2 groups keep no names");
  write({{0, 1}}, 7);
  without("it is of other parameters than the model");
  write({{0, 1}}, 3, 1.0F);
  without("\"w\" has 2 updates and \"b\" has 1");
}

// Parameters that are not trained.

TEST_F(DeepSpeedVariants, OfStage2TakesFrozenParametersWholeFromTheirFragments) {
  gpt::File model, state;
  const gpt::Tensor frozen = of({6, 7, 8});
  model.write(
      tag() / "mp_rank_00_model_states.pt",
      {{"module", op::dict({{"w", model.tensor(of({0, 0}))}, {"frozen", model.tensor(frozen)}})},
       {"param_shapes", op::list_of({op::dict({{"w", size_of_torch(2)}})})},
       {"frozen_param_shapes", op::dict({{"frozen", size_of_torch(3)}})},
       {"frozen_param_fragments", op::dict({{"frozen", model.tensor(frozen)}})},
       {"ds_config", stage(2)}});
  state.write(
      optimizer(0),
      {{"optimizer_state_dict",
        op::dict(
            {{"single_partition_of_fp32_groups", op::list_of({state.tensor(of({1, 2}))})},
             {"base_optimizer_state",
              op::dict({{"state", numbered({op::dict({{"exp_avg", state.tensor(of({3, 4}))}})})}})},
             {"partition_count", op::integer(1)}})}});

  const Foreign read = open_foreign(path("ds")).value();

  ASSERT_EQ(read.weights.size(), 2U);
  EXPECT_EQ(values_of(read.weights[0]), (Values{1, 2}));
  EXPECT_EQ(read.weights[1].name, "frozen");
  EXPECT_EQ(values_of(read.weights[1]), (Values{6, 7, 8}));
  ASSERT_EQ(read.state.at("exp_avg").size(), 1U);
  EXPECT_EQ(read.state.at("exp_avg")[0].name, "w");
}

/// Stage 3 with two ranks: w of 3 elements is trained, frozen of 5 is not; each is split into two
/// halves, the second padded.
void write_stage3(const fs::path& tag,
                  const std::string& shape_w,
                  const std::string& shape_frozen,
                  const std::string& config,
                  std::size_t last_fragment) {
  const std::vector<Values> fragments = {{6, 7, 8}, Values{9, 10, 0}}, masters = {{1, 2}, {3, 0}},
                            moments = {{4, 5}, {6, 0}};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    gpt::File model, state;
    Values fragment = fragments[rank];
    if (rank == 1) fragment.resize(last_fragment);
    model.write(tag / fmt::format("zero_pp_rank_{}_mp_rank_00_model_states.pt", rank),
                {{"module", op::kDict},
                 {"param_shapes", op::list_of({op::dict({{"w", shape_w}})})},
                 {"frozen_param_shapes", op::dict({{"frozen", shape_frozen}})},
                 {"frozen_param_fragments", op::dict({{"frozen", model.tensor(of(fragment))}})},
                 {"ds_config", config}});
    state.write(
        tag / fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank),
        {{"optimizer_state_dict",
          op::dict(
              {{"fp32_flat_groups", op::list_of({state.tensor(of(masters[rank]))})},
               {"optimizer_state_dict",
                op::dict({{"state",
                           numbered({op::dict({{"exp_avg", state.tensor(of(moments[rank]))}})})}})},
               {"partition_count", op::integer(2)}})}});
  }
}

TEST_F(DeepSpeedVariants, OfStage3JoinsFrozenParametersFromEveryRank) {
  write_stage3(tag(), size_of_torch(3), size_of_torch(5), stage(3), 3);

  const Foreign read = open_foreign(path("ds")).value();

  ASSERT_EQ(read.weights.size(), 2U);
  EXPECT_EQ(values_of(read.weights[0]), (Values{1, 2, 3}));
  EXPECT_EQ(values_of(read.state.at("exp_avg")[0]), (Values{4, 5, 6}));
  EXPECT_EQ(read.weights[1].name, "frozen");
  EXPECT_EQ(values_of(read.weights[1]), (Values{6, 7, 8, 9, 10}));
}

TEST_F(DeepSpeedVariants, OfStage3WithAFrozenFragmentThatIsShortIsRefused) {
  write_stage3(tag(), size_of_torch(3), size_of_torch(5), stage(3), 1);

  refused(path("ds"), "\"frozen\" has 4 of the 5 elements");
}

TEST_F(DeepSpeedVariants, WithoutTheFragmentOfAFrozenParameterIsRefused) {
  gpt::File model, state;
  model.write(tag() / "mp_rank_00_model_states.pt",
              {{"module", op::kDict},
               {"param_shapes", op::list_of({op::dict({{"w", size_of_torch(2)}})})},
               {"frozen_param_shapes", op::dict({{"frozen", size_of_torch(3)}})},
               {"frozen_param_fragments", op::kNone}});
  state.write(
      optimizer(0),
      {{"optimizer_state_dict",
        op::dict({{"single_partition_of_fp32_groups", op::list_of({state.tensor(of({1, 2}))})},
                  {"partition_count", op::integer(1)}})}});

  refused(path("ds"), "has no tensor frozen_param_fragments.frozen");
}

// Elastic checkpoints of stages 1 and 2: one dict per group, without padding.

TEST_F(DeepSpeedVariants, WithMomentsListedByGroupIsReadToTheLastElement) {
  gpt::File model;
  model.write(tag() / "mp_rank_00_model_states.pt",
              {{"module", op::kDict},
               {"param_shapes",
                op::list_of({op::dict({{"w", size_of_torch(3)}, {"v", size_of_torch(2)}}),
                             op::dict({{"b", size_of_torch(3)}})})},
               {"global_steps", op::integer(7)},
               {"ds_config", stage(1)}});
  // w and v are split into 1 2 3 | 4 5, b into 6 7 | 8; there is no padding.
  const std::vector<std::vector<Values>> masters = {{{1, 2, 3}, {6, 7}}, {{4, 5}, {8}}};
  for (int rank = 0; rank < 2; ++rank) {
    gpt::File state;
    std::vector<std::string> parts, base;
    for (const Values& part : masters[static_cast<std::size_t>(rank)]) {
      Values moments = part;
      for (float& value : moments)
        value *= 10;
      parts.push_back(state.tensor(of(part)));
      base.push_back(
          op::dict({{"exp_avg", state.tensor(of(moments))}, {"step", state.tensor({{}, {5.0F}})}}));
    }
    state.write(optimizer(rank),
                {{"optimizer_state_dict",
                  op::dict({{"single_partition_of_fp32_groups", op::list_of(parts)},
                            {"base_optimizer_state", op::list_of(base)},
                            {"partition_count", op::list_of({op::integer(2), op::integer(2)})}})}});
  }

  const Foreign read = open_foreign(path("ds")).value();

  ASSERT_EQ(read.weights.size(), 3U);
  const std::vector<std::pair<std::string, Values>> expected = {
      {"w", {1, 2, 3}}, {"v", {4, 5}}, {"b", {6, 7, 8}}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(read.weights[i].name, expected[i].first);
    EXPECT_EQ(values_of(read.weights[i]), expected[i].second);
    Values moments = expected[i].second;
    for (float& value : moments)
      value *= 10;
    EXPECT_EQ(values_of(read.state.at("exp_avg")[i]), moments);
  }
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.skipped, 2);  // 5 updates of 7 steps were counted
}

// Groups of stages 1 and 2 that are more than their concatenated parameters.

using Mapping = std::vector<std::pair<std::string, std::string>>;

/// Formats the position of a piece in the part of a rank, as DeepSpeed does.
std::string place(std::int64_t start, std::int64_t numel) {
  return op::global("deepspeed.utils.tensor_fragment", "fragment_address") + ")\x81" +
         op::dict({{"numel", op::integer(numel)}, {"start", op::integer(start)}}) + "b";
}

/// Two ranks with one group; moments are ten times their masters.
class FlatGroup : public DeepSpeedVariants {
 protected:
  void write(const std::vector<std::pair<std::string, std::string>>& shapes,
             const std::string& config) {
    gpt::File model;
    model.write(tag() / "mp_rank_00_model_states.pt",
                {{"module", op::kDict},
                 {"param_shapes", op::list_of({op::dict(shapes)})},
                 {"ds_config", config}});
    for (std::size_t rank = 0; rank < parts.size(); ++rank)
      write_rank(rank);
  }
  void write_rank(std::size_t rank) {
    gpt::File file;
    Values moments = parts[rank];
    for (float& value : moments)
      value *= 10;
    gpt::Members state = {
        {"single_partition_of_fp32_groups", op::list_of({file.tensor(of(parts[rank]))})},
        {"base_optimizer_state",
         op::dict({{"state", numbered({op::dict({{"exp_avg", file.tensor(of(moments))}})})}})},
        {"partition_count", op::integer(2)}};
    if (!mappings.empty())
      state.emplace_back("param_slice_mappings", op::list_of({op::dict(mappings[rank])}));
    if (!paddings.empty()) {
      std::vector<std::string> counts;
      for (const std::int64_t padding : paddings)
        counts.push_back(op::integer(padding));
      state.emplace_back("param_alignment_paddings", op::list_of({op::list_of(counts)}));
    }
    file.write(optimizer(static_cast<int>(rank)), {{"optimizer_state_dict", op::dict(state)}});
  }
  void expect(const std::vector<std::pair<std::string, Values>>& expected) {
    const Foreign read = open_foreign(path("ds")).value();
    ASSERT_EQ(read.weights.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      Values moments = expected[i].second;
      for (float& value : moments)
        value *= 10;
      EXPECT_EQ(read.weights[i].name, expected[i].first);
      EXPECT_EQ(values_of(read.weights[i]), expected[i].second) << expected[i].first;
      EXPECT_EQ(values_of(read.state.at("exp_avg")[i]), moments) << expected[i].first;
    }
  }
  std::vector<Values> parts;
  std::vector<Mapping> mappings;  ///< one per rank; empty: no rank's file has one
  /// Padding after each parameter; empty: the file doesn't contain it.
  std::vector<std::int64_t> paddings;
};

/// a, b and c dealt to two ranks: a and c precede b; the mappings are in the order a, b, c.
class RoundRobin : public FlatGroup {
 protected:
  RoundRobin() {
    parts = {{1, 2, 6, 7}, {3, 4, 5}};
    mappings = {{{"a", place(0, 2)}, {"b", place(2, 2)}}, {{"b", place(0, 1)}, {"c", place(1, 2)}}};
  }
  void write_shuffled(const std::string& config) {
    write({{"a", size_of_torch(2)}, {"c", size_of_torch(2)}, {"b", size_of_torch(3)}}, config);
  }
};

TEST_F(RoundRobin, IsReadInTheOrderOfItsShapesWhateverTheMappingsSay) {
  write_shuffled(
      op::dict({{"zero_optimization",
                 op::dict({{"stage", op::integer(2)}, {"round_robin_gradients", op::kTrue}})}}));
  expect({{"a", {1, 2}}, {"c", {6, 7}}, {"b", {3, 4, 5}}});
}

TEST_F(RoundRobin, IsReadSoTooWhereTheConfigurationIsNotThere) {
  write_shuffled(op::kNone);
  expect({{"a", {1, 2}}, {"c", {6, 7}}, {"b", {3, 4, 5}}});
}

TEST_F(RoundRobin, ThatTheConfigurationDoesNotAskForIsDamage) {
  write_shuffled(stage(2));
  refused(path("ds"),
          "param_slice_mappings have c in another place than the order of param_shapes");
}

/// w is padded from 3 elements to 8, across the end of the first rank's part.
class ParameterAlignment : public FlatGroup {
 protected:
  ParameterAlignment() {
    parts = {{1, 2, 3, 0, 0, 0}, {0, 0, 4, 5}};
    paddings = {5, 0};
  }
  void write_aligned() { write({{"w", size_of_torch(3)}, {"v", size_of_torch(2)}}, stage(2)); }
};

TEST_F(ParameterAlignment, PassesOverThePaddingBetweenParameters) {
  write_aligned();
  expect({{"w", {1, 2, 3}}, {"v", {4, 5}}});

  mappings = {{{"w", place(0, 3)}}, {{"v", place(2, 2)}}};
  write_aligned();
  expect({{"w", {1, 2, 3}}, {"v", {4, 5}}});
}

TEST_F(ParameterAlignment, ThatCannotBeIsRefused) {
  paddings = {5};
  write_aligned();
  refused(path("ds"), "param_alignment_paddings of group 0 are not those of 2 parameters");
  paddings = {-1, 0};
  write_aligned();
  refused(path("ds"), "param_alignment_paddings of group 0");
  paddings = {INT64_MAX, 0};
  write_aligned();
  refused(path("ds"), "end before the padding of parameter w");
}

}  // namespace
}  // namespace tessera::interop

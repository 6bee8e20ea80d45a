// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/adapter_options.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

AdapterOptions options_with(const std::string& targets, const std::string& more = "") {
  AdapterOptions out;
  config::Problems problems;
  config::Origins origins;
  const std::string text = R"({"type": "lora", "targets": )" + targets + more + "}";
  config::read(json::parse_strict(text, "test"), out, problems, origins);
  problems.raise();
  return out;
}

bool meant(const AdapterOptions& options, const std::string& module, bool everything = true) {
  return AdapterRules(options).targets(module, everything);
}

TEST(AdapterRules, ANameIsTheWholeOneOrWhatFollowsADot) {
  const AdapterOptions options = options_with(R"(["q_proj", "model.layers.1.mlp.up_proj"])");
  EXPECT_TRUE(meant(options, "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(meant(options, "q_proj"));
  EXPECT_FALSE(meant(options, "model.layers.0.self_attn.my_q_proj"));
  EXPECT_FALSE(meant(options, "model.layers.0.self_attn.q_proj.inner"));
  EXPECT_TRUE(meant(options, "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(meant(options, "model.layers.0.mlp.up_proj"));
}

TEST(AdapterRules, AStringIsAnExpressionForTheWholeName) {
  const AdapterOptions options = options_with(R"(".*\\.layers\\.[02]\\..*_proj")");
  EXPECT_TRUE(meant(options, "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(meant(options, "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(meant(options, "model.layers.0.self_attn.q_proj.more"));
}

TEST(AdapterRules, AllLinearMeansWhatIsLinear) {
  const AdapterOptions options = options_with(R"("all-linear")", R"(, "exclude": ["down_proj"])");
  EXPECT_TRUE(meant(options, "a.up_proj", true));
  EXPECT_FALSE(meant(options, "a.embed", false));
  EXPECT_FALSE(meant(options, "a.down_proj", true));
}

TEST(AdapterRules, LayersAreCountedByTheNumberBehindTheirList) {
  const AdapterOptions any = options_with(R"(["c_attn"])", R"(, "layers": [1, 11])");
  EXPECT_FALSE(meant(any, "transformer.h.0.attn.c_attn"));
  EXPECT_TRUE(meant(any, "transformer.h.1.attn.c_attn"));
  EXPECT_TRUE(meant(any, "transformer.h.11.attn.c_attn"));
  EXPECT_FALSE(meant(any, "transformer.c_attn"));
  const AdapterOptions named =
      options_with(R"(["c_attn"])", R"(, "layers": 1, "layers_pattern": ["blocks"])");
  EXPECT_FALSE(meant(named, "transformer.h.1.attn.c_attn"));
  EXPECT_TRUE(meant(named, "transformer.blocks.1.h.0.c_attn"));
  for (const char* all : {R"("all-linear")", R"(["all-linear"])", "null"}) {
    const AdapterOptions linear = options_with(all, R"(, "layers": [3, 7])");
    EXPECT_TRUE(meant(linear, "model.layers.3.mlp.up_proj")) << all;
    EXPECT_FALSE(meant(linear, "model.layers.4.mlp.up_proj")) << all;
    EXPECT_FALSE(meant(linear, "model.layers.7.norm", false)) << all;
  }
}

TEST(AdapterRules, TheFirstPatternThatFitsGivesTheRank) {
  const AdapterOptions options =
      options_with("null",
                   R"(, "r": 8, "alpha": 4, "rank_pattern": {"layers.1.up_proj": 6, "up_.*": 2},
                       "alpha_pattern": {"up_proj": 16})");
  const AdapterRules rules(options);
  EXPECT_EQ(rules.rank("model.layers.1.up_proj"), 6);
  EXPECT_EQ(rules.rank("model.layers.0.up_proj"), 2);
  EXPECT_EQ(rules.rank("model.layers.0.down_proj"), 8);
  EXPECT_EQ(rules.alpha("model.layers.0.up_proj"), 16);
  EXPECT_EQ(rules.alpha("model.layers.0.down_proj"), 4);
}

TEST(AdapterRules, ScalesByTheRankOrItsRoot) {
  AdapterOptions options;
  options.type = "lora";
  EXPECT_DOUBLE_EQ(options.scale(4, 8), 2);
  options.type = "rslora";
  EXPECT_DOUBLE_EQ(options.scale(4, 8), 4);
  options.type = "dora";
  EXPECT_DOUBLE_EQ(options.scale(4, 8), 2);
  options.rank_stabilized = true;
  EXPECT_DOUBLE_EQ(options.scale(3, 9), 9 / std::sqrt(3.0));
}

TEST(AdapterRules, NameEverythingThatFitsNoLayer) {
  const std::vector<std::string> layers = {"model.layers.0.self_attn.q_proj",
                                           "model.layers.11.self_attn.q_proj"};
  const auto unused = [&](const std::string& targets, const std::string& more) {
    const AdapterOptions options = options_with(targets, more);
    return AdapterRules(options).unused(layers);
  };
  using Names = std::vector<std::string>;

  EXPECT_EQ(unused(R"(["q_proj", "c_attn"])", ""), Names{R"(targets "c_attn")"});
  EXPECT_EQ(unused("null", R"(, "alpha_pattern": {"w_query": 100, "q_.*": 2})"),
            Names{R"(alpha_pattern "w_query")"});
  EXPECT_EQ(unused("null", R"(, "rank_pattern": {"layers.1.self_attn.q_proj": 3})"),
            Names{R"(rank_pattern "layers.1.self_attn.q_proj")"});
  EXPECT_EQ(unused(R"(["q_proj"])", R"(, "layers": [0, 12], "layers_pattern": ["layers"])"),
            Names{"layers 12"});
  EXPECT_EQ(unused(R"(".*q_proj")", R"(, "rank_pattern": {"q_proj": 3, "11.*": 4})"), Names());
}

TEST(AdapterRules, RefuseWhatTheyCannotMean) {
  const auto refused = [](const std::string& targets, const std::string& more = "") {
    const AdapterOptions options = options_with(targets, more);
    EXPECT_THROW(AdapterRules{options}, Error) << targets << more;
  };
  refused(R"("q_proj(")");
  refused("[1]");
  refused("3");
  refused(R"(".*")", R"(, "layers": [0])");
  refused(R"(["a"])", R"(, "layers": ["x"])");
  refused(R"(["a"])", R"(, "rank_pattern": {"a": 1.5})");
  refused(R"(["a"])", R"(, "rank_pattern": {"a": 0})");
  refused(R"(["a"])", R"(, "alpha_pattern": {"(": 1})");
}

}  // namespace
}  // namespace tessera::models

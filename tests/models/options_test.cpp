// SPDX-License-Identifier: Apache-2.0
// Options of several families: a second family, made up here, has keys of its own.
#include "tessera/models/options.h"

#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/models/family.h"
#include "tessera/models/gpt2.h"

namespace tessera::models {
namespace {

using testing::HasSubstr;

struct ImaginaryOptions final : FamilyOptions {
  double rate = 0.25;
  double noise = 0.0;
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<ImaginaryOptions>(*this);
  }
  void describe(config::Fields& fields) override {
    describe_sizes(fields, {});
    fields.field("rate", rate, {.text = "A key that no other family has.", .min = 0, .max = 1});
    fields.field("noise", noise, {.text = "An adjustable key.", .min = 0, .max = 1});
    describe_from(fields);
  }
};

Resolved resolve_imaginary(const ImaginaryOptions& options,
                           std::int64_t /*tokenizer_size*/,
                           std::optional<std::int64_t> /*sequence_length*/,
                           config::Problems& /*problems*/,
                           const config::Origins& /*origins*/) {
  ModelOptions whole("imaginary", options.clone());
  Gpt2Shape shape;
  shape.num_layers = options.num_layers.value_or(1);
  return {.description = config::write(whole),
          .trunk = gpt2_trunk(shape),
          .num_parameters = shape.num_parameters(),
          .num_layers = shape.num_layers};
}

Composition compose(const ParamInfo& info) {
  return Composition::of("imaginary." + info.name, info.shape);
}

TESSERA_MODEL(
    "imaginary",
    FamilyOf<ImaginaryOptions>{
        .adjustable = {{"noise"}},
        .resolve = resolve_imaginary,
        .from_hf = [](const json::Value&) { return ImaginaryOptions(); },
        .to_hf =
            [](const ImaginaryOptions&) {
              return json::Value::object({{"model_type", json::Value::string("imaginary")}});
            },
        .weight_map = {.compose = compose, .anchor = "imaginary.wte.weight"}});

struct Whole {
  ModelOptions model;
  void describe(config::Fields& fields) { fields.section("model", model, "The model."); }
};

struct Read {
  Whole whole;
  config::Problems problems;
  config::Origins origins;
  [[nodiscard]] std::string text() const {
    std::string out;
    for (const auto& p : problems.list())
      out += p.place.text() + " " + p.path + ": " + p.what + " (" + p.fix + ")\n";
    return out;
  }
};

Read read(const std::string& model) {
  Read out;
  config::read(json::parse("{\"model\": " + model + "}", "config.json"),
               out.whole,
               out.problems,
               out.origins);
  return out;
}

TEST(ModelOptions, AreThoseOfTheFamilyThatIsNamed) {
  const Read imaginary = read(R"({"rate": 0.5, "num_layers": 3, "family": "imaginary"})");

  EXPECT_EQ(imaginary.text(), "");
  EXPECT_EQ(imaginary.whole.model.family(), "imaginary");
  EXPECT_EQ(imaginary.whole.model->num_layers, 3);
  EXPECT_TRUE(imaginary.whole.model.has("rate"));
  EXPECT_FALSE(read("{}").whole.model.has("rate"));
}

TEST(ModelOptions, ReportKeysOfAnotherFamilyWithTheirPlaces) {
  const Read other = read("{\"family\": \"imaginary\",\n \"qkv_bias\": true, \"rat\": 1}");

  EXPECT_EQ(other.problems.list().size(), 2U);
  EXPECT_THAT(other.text(), HasSubstr("config.json:2:2 model.qkv_bias: unknown key"));
  EXPECT_THAT(other.text(), HasSubstr("did you mean \"rate\"?"));
  EXPECT_THAT(read(R"({"rate": 0.5})").text(), HasSubstr("model.rate: unknown key"));
}

TEST(ModelOptions, NameTheNearestFamily) {
  const Read unknown = read(R"({"family": "imaginery", "num_layers": 2})");

  EXPECT_EQ(unknown.problems.list().size(), 1U);
  EXPECT_THAT(unknown.text(), HasSubstr("did you mean \"imaginary\"?"));
}

TEST(ModelOptions, GoThroughJsonAndBack) {
  ModelOptions first = read(R"({"family": "imaginary", "rate": 0.125, "noise": 1})").whole.model;

  ModelOptions again = read(config::write(first).dump()).whole.model;

  EXPECT_EQ(config::write(again).dump(), config::write(first).dump());
  EXPECT_EQ(config::write(again).find("rate")->as_double(), 0.125);
}

TEST(ModelOptions, AreCopiedWhole) {
  ModelOptions first = read(R"({"num_layers": 3})").whole.model;
  const ModelOptions copy = first;
  first->num_layers = 4;

  EXPECT_EQ(copy->num_layers, 3);
}

TEST(MergedOptions, TakeAdjustableKeysFromTheUserAndTheRestFromTheSource) {
  const ModelOptions source = read(R"({"family": "imaginary", "rate": 0.5})").whole.model;
  Read given = read(R"({"family": "imaginary", "from": "a folder", "noise": 0.75, "rate": 0.5})");

  ModelOptions merged = merge_options(given.whole.model, source, given.problems, given.origins);

  EXPECT_EQ(given.text(), "");
  EXPECT_EQ(config::write(merged).find("noise")->as_double(), 0.75);
  EXPECT_EQ(config::write(merged).find("rate")->as_double(), 0.5);
  EXPECT_EQ(merged->from, "a folder");
}

TEST(MergedOptions, RefuseKeysThatContradictTheSourceOrThatItsFamilyLacks) {
  const ModelOptions source = read(R"({"family": "imaginary", "rate": 0.5})").whole.model;
  Read contradicting = read(R"({"family": "imaginary", "rate": 0.25})");
  Read lacking = read(R"({"qkv_bias": true, "from": "a folder"})");
  Read named = read(R"({"family": "gpt2"})");

  for (Read* given : {&contradicting, &lacking, &named})
    merge_options(given->whole.model, source, given->problems, given->origins);

  EXPECT_THAT(contradicting.text(), HasSubstr("model.rate differs from the folder"));
  EXPECT_THAT(lacking.text(), HasSubstr("model.qkv_bias differs from the folder"));
  EXPECT_THAT(named.text(), HasSubstr("model.family differs from the folder"));
}

// The fix of either error must not lead to the other.
TEST(MergedOptions, SayHowManyPositionsAFolderHas) {
  Read source = read(R"({"family": "imaginary", "max_positions": 16})");
  Read given = read(R"({"family": "imaginary", "from": "a folder", "max_positions": 64})");

  const ModelOptions merged =
      merge_options(given.whole.model, source.whole.model, given.problems, given.origins);

  EXPECT_THAT(given.text(), HasSubstr("leave it out, and set data.sequence_length to 16 or less"));
  EXPECT_EQ(merged->max_positions, 16);
}

}  // namespace
}  // namespace tessera::models

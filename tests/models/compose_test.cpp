// SPDX-License-Identifier: Apache-2.0
// Composed models beyond those whose answers are recorded: biases of the attention of a decoder to
// its encoder, the two objectives of BERT together, and a prefix language model.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/model_runner.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"
#include "tessera/models/family.h"

namespace tessera::models {
namespace {

using test::ModelRunner;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kAttention = "decoder.transformer_decoder.0.context_attn.";
constexpr double kRounding = 1e-5;  // of logits of a few units in fp32

constexpr std::int64_t kVocab = 40;

/// A model of one layer with 16 channels in two heads, and more keys.
Resolved tiny(const std::string& family,
              const std::string& keys,
              const ObjectiveChoice& objective = {}) {
  ModelOptions options(family);
  config::Problems problems;
  config::Origins origins;
  json::Value value = json::parse_strict(
      R"({"num_layers": 1, "hidden_size": 16, "num_heads": 2, "vocab_size": 40, )" + keys + "}",
      "test");
  value["family"] = json::Value::string(family);
  config::read(value, options, problems, origins);
  problems.raise();
  Resolved out = resolve(options, kVocab, std::nullopt, problems, config::Origins(), objective);
  problems.raise();
  return out;
}

Resolved answering() {
  return tiny("compose",
              R"("num_decoder_layers": 1, "embedding": ["word"], "mask": "fully_visible",
                 "position": "relative", "decoder": "transformer")");
}

/// A model whose weights are drawn; biases are zeros but for those that are given.
class Answers {
 public:
  Answers() : runner_(answering().model) {}

  at::Tensor logits(const std::string& bias = "", const at::Tensor& value = {}) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    runner_.fill([&](const ParamInfo& info, const at::Tensor& out) {
      if (info.name.ends_with(".bias")) {
        out.zero_();
      } else {
        out.normal_(info.name.find("norm") != std::string::npos ? 1.0 : 0.0, 0.4, generator);
      }
      if (info.name == bias) out.copy_(value.reshape({-1}));
    });
    nn::Batch batch = test::make_batch(at::tensor({3, 17, 9, 30, 2}, at::kLong).view({1, -1}));
    batch.set("decoder_input_ids", at::tensor({0, 21, 8, 5}, at::kLong).view({1, -1}));
    nn::StepContext context(nn::Mode::Prefill, 1);
    context.want_logits = true;
    const at::NoGradGuard no_grad;
    return runner_.infer(batch, context).outputs.at("logits").clone();
  }
  [[nodiscard]] const at::Tensor& weight(const std::string& name) const {
    return runner_.weights.at(name);
  }

 private:
  ModelRunner runner_;
};

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

std::string in_attention(const char* name) {
  return std::string(kAttention) + name;
}

// Queries that are zero in the channels that turn see no order among earlier tokens.
TEST(ComposedModels, TurnTheShareOfChannelsThatIsGiven) {
  const auto last = [](const std::string& share, const std::vector<std::int64_t>& ids) {
    ModelRunner runner(
        tiny("compose", R"("embedding": ["word"], "position": "rotary", "head_dim": 8)" + share)
            .model);
    at::Generator generator = at::detail::createCPUGenerator(5);
    runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
      out.normal_(info.name.find("norm") != std::string::npos ? 1.0 : 0.0, 0.4, generator);
      if (info.name.ends_with("self_attn.qkv.weight"))
        out.view({3, 2, 8, 16})[0].narrow(1, 0, 4).zero_();
      if (info.name.ends_with("self_attn.qkv.bias")) out.zero_();
    });
    const nn::Batch batch = test::make_batch(at::tensor(ids, at::kLong).view({1, -1}));
    nn::StepContext context(nn::Mode::Prefill, 1);
    context.want_logits = true;
    const at::NoGradGuard no_grad;
    const at::Tensor logits = runner.infer(batch, context).outputs.at("logits");
    return logits.reshape({-1, logits.size(-1)})[-1].clone();
  };
  const std::vector<std::int64_t> one = {3, 17, 9, 30, 2}, other = {9, 30, 3, 17, 2};
  const std::string half = R"(, "rotary_fraction": 0.5)";
  EXPECT_LT(difference(last(half, one), last(half, other)), kRounding);
  EXPECT_GT(difference(last("", one), last("", other)), 1e-3);
}

TEST(ComposedModels, MayShareTheirPositionsAndNormalizeHeads) {
  const std::string keys =
      R"("num_decoder_layers": 1, "mask": "fully_visible", "decoder": "transformer")";
  const auto names = [&](const std::string& more) {
    const ModelRunner runner(tiny("compose", keys + more).model);
    std::vector<std::string> out;
    for (const auto& [name, info] : runner.infos)
      out.push_back(name);
    return out;
  };
  const std::string own = "tgt_embedding.pos.embedding.weight",
                    norm = "encoder.transformer.0.self_attn.q_norm.bias";
  EXPECT_THAT(names(""), AllOf(::testing::Contains(own), Not(::testing::Contains(norm))));
  EXPECT_THAT(names(R"(, "shared_positions": true, "qk_norm": true)"),
              AllOf(Not(::testing::Contains(own)), ::testing::Contains(norm)));
  EXPECT_THAT(names(R"(, "norm": "rms", "qk_norm": true)"), Not(::testing::Contains(norm)))
      << "RMS norms have no bias";
  try {
    (void)tiny("compose", R"("shared_positions": true)");
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("no second table of positions"));
  }
}

TEST(ComposedModels, ABiasOfKeysChangesNothingInAttentionToTheEncoder) {
  Answers model;
  const at::Tensor without = model.logits();
  at::Tensor bias = at::zeros({2, 16});
  bias[0] = at::arange(16).to(at::kFloat) / 8;

  EXPECT_LT(difference(model.logits(in_attention("kv.bias"), bias), without), kRounding);
}

TEST(ComposedModels, ABiasOfValuesComesThroughTheOutputProjection) {
  Answers model;
  const at::Tensor without = model.logits();
  const at::Tensor values = at::arange(16).to(at::kFloat) / 8 - 1;
  at::Tensor bias = at::zeros({2, 16});
  bias[1] = values;

  const at::Tensor by_values = model.logits(in_attention("kv.bias"), bias);
  const at::Tensor through = at::matmul(model.weight(in_attention("final_linear.weight")), values);
  const at::Tensor by_output = model.logits(in_attention("final_linear.bias"), through);

  EXPECT_LT(difference(by_values, by_output), kRounding);
  EXPECT_GT(difference(by_values, without), 1e-2);
}

TEST(ComposedModels, ABiasOfQueriesChangesWhatIsSeen) {
  Answers model;
  const at::Tensor without = model.logits();

  EXPECT_GT(difference(model.logits(in_attention("q.bias"), at::full({16}, 0.5)), without), 1e-3);
}

TEST(ComposedModels, StoreTheBiasesOfTheirProjectionsApart) {
  const WeightMap& map = families().get("compose").weight_map;
  std::vector<std::string> names;
  for (const TheirTensor& tensor : their_tensors(map, nn::parameters_of(answering().model))) {
    if (tensor.name.find("context_attn") != std::string::npos && tensor.name.ends_with(".bias"))
      names.push_back(tensor.name.substr(std::string(kAttention).size()));
  }

  EXPECT_EQ(names,
            (std::vector<std::string>{"linear_layers.0.bias",
                                      "linear_layers.1.bias",
                                      "linear_layers.2.bias",
                                      "final_linear.bias"}));
}

/// Names of BERT's parameters for those of a composed model, which begin with the first of a pair.
const std::vector<std::pair<std::string, std::string>>& bert_names() {
  static const std::vector<std::pair<std::string, std::string>> all = {
      {"embedding.word.embedding.", "embeddings.word_embeddings."},
      {"embedding.pos.embedding.", "embeddings.position_embeddings."},
      {"embedding.seg.embedding.", "embeddings.token_type_embeddings."},
      {"embedding.layer_norm.", "embeddings.LayerNorm."},
      {"encoder.transformer.0.self_attn.qkv.", "encoder.layer.0.attention.self.qkv."},
      {"encoder.transformer.0.self_attn.final_linear.", "encoder.layer.0.attention.output.dense."},
      {"encoder.transformer.0.layer_norm_1.", "encoder.layer.0.attention.output.LayerNorm."},
      {"encoder.transformer.0.feed_forward.linear_1.", "encoder.layer.0.intermediate.dense."},
      {"encoder.transformer.0.feed_forward.linear_2.", "encoder.layer.0.output.dense."},
      {"encoder.transformer.0.layer_norm_2.", "encoder.layer.0.output.LayerNorm."},
      {"target.mlm.linear_1.", "cls.predictions.transform.dense."},
      {"target.mlm.layer_norm.", "cls.predictions.transform.LayerNorm."},
      {"target.mlm.linear_2.bias", "cls.predictions.bias"},
      {"target.sp.linear_1.", "pooler.dense."},
      {"target.sp.linear_2.", "cls.seq_relationship."}};
  return all;
}

std::string bert_name(const std::string& name) {
  for (const auto& [ours, theirs] : bert_names()) {
    if (name.starts_with(ours)) return theirs + name.substr(ours.size());
  }
  return name;
}

nn::Batch pairs_of_texts() {
  nn::Batch batch = test::make_batch(
      at::tensor({1, 9, 7, 2, 30, 8, 2, 1, 4, 2, 21, 7, 5, 2}, at::kLong).view({2, 7}),
      at::tensor({-100, -100, 12, -100, -100, 3, -100, -100, 18, -100, -100, 9, -100, -100},
                 at::kLong)
          .view({2, 7}));
  batch.set("token_type_ids",
            at::tensor({0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1}, at::kLong).view({2, 7}));
  batch.set("pair_label", at::tensor({1, 0}, at::kLong));
  return batch;
}

TEST(ComposedModels, LearnMaskedTokensAndPairsTogetherAsBertDoes) {
  const ObjectiveChoice both = {"masked_lm_pairs",
                                json::Value::object({{"pairs", json::Value::string("nsp")}})};
  ModelRunner bert(tiny("bert", R"("max_positions": 12)", both).model);
  ModelRunner composed(tiny("compose",
                            R"("max_positions": 12, "embedding": ["word", "pos", "seg"],
                               "mask": "fully_visible", "norm_position": "post",
                               "norm_eps": 1e-12, "target": ["mlm", "sp"])",
                            both)
                           .model);
  bert.initialize(3);
  composed.fill([&](const ParamInfo& info, const at::Tensor& out) {
    at::Tensor value = bert.weights.at(bert_name(info.name));
    // The first row is that of padding.
    if (info.name.starts_with("embedding.seg.")) value = at::cat({at::zeros({1, 16}), value});
    out.copy_(value.reshape({-1}));
  });
  EXPECT_EQ(composed.weights.size(), bert.weights.size());

  const double loss = composed.train(pairs_of_texts()), expected = bert.train(pairs_of_texts());

  EXPECT_NEAR(loss, expected, kRounding);
  for (const auto& [name, grad] : composed.grads) {
    const at::Tensor& theirs = bert.grads.at(bert_name(name));
    const at::Tensor ours = name.starts_with("embedding.seg.") ? grad.narrow(0, 1, 2) : grad;
    EXPECT_LT(difference(ours.reshape({-1}), theirs.reshape({-1})), kRounding) << name;
  }
}

TEST(ComposedModels, AreTrainedByTheObjectiveOfTheirMask) {
  EXPECT_EQ(tiny("compose", R"("mask": "causal")").objective.name, "causal_lm");
  EXPECT_EQ(tiny("compose", R"("mask": "causal_with_prefix")").objective.name, "prefix_lm");
}

// A prefix is the first segment.
TEST(ComposedModels, WithAPrefixHaveItsTokensInASegment) {
  const ObjectiveChoice prefix_lm = {"prefix_lm", json::Value::object()};
  const std::string keys = R"("max_positions": 12, "embedding": ["word", "pos", "seg"], )";
  ModelRunner prefix(tiny("compose", keys + R"("mask": "causal_with_prefix")").model),
      causal(tiny("compose", keys + R"("mask": "causal")", prefix_lm).model);
  prefix.initialize(3);
  causal.initialize(3);
  nn::Batch batch =
      test::make_batch(pairs_of_texts().tensor("input_ids"), pairs_of_texts().tensor("input_ids"));
  batch.set("prefix_lengths", at::tensor({4, 3}, at::kLong));
  nn::Batch with_types = batch;
  with_types.set("token_type_ids", pairs_of_texts().tensor("token_type_ids"));

  EXPECT_EQ(prefix.train(batch), causal.train(with_types));
  EXPECT_NE(prefix.train(batch), causal.train(batch));
}

/// The message that refuses a composed model; empty if it is built.
std::string refusal_of(const std::string& keys) {
  try {
    (void)tiny("compose", keys);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ComposedModels, OfSoundsAreRefusedWithThatAsTheOnlyProblem) {
  for (const char* embedding : {R"(["speech"])", R"(["speech", "sinusoidalpos"])"}) {
    const std::string refusal =
        refusal_of(R"("mask": "fully_visible", "decoder": "transformer", "embedding": )" +
                   std::string(embedding));
    EXPECT_THAT(refusal, HasSubstr("model.embedding:"));
    EXPECT_THAT(refusal, HasSubstr("models of speech are not built"));
    EXPECT_THAT(refusal, Not(HasSubstr("problems in the configuration")));
  }
  EXPECT_THAT(refusal_of(R"("embedding": ["word", "sinusoidalpos"])"),
              HasSubstr("TencentPretrain's embedding \"sinusoidalpos\" is not built"));
  EXPECT_THAT(refusal_of(R"("embedding": ["word", "poss"])"), HasSubstr("unknown value \"poss\""));
  EXPECT_THAT(refusal_of(R"("embedding": ["pos"])"), HasSubstr("needs either"));
}

TEST(ComposedModels, OfImagesHaveNoRotaryPositions) {
  const std::string images = R"("embedding": ["patch", "pos"], "mask": "fully_visible",
                                "target": ["cls"], "image_size": 8, "patch_size": 4, )";
  EXPECT_EQ(refusal_of(images + R"("position": "relative")"), "");
  EXPECT_THAT(refusal_of(images + R"("position": "rotary")"), HasSubstr("model.position"));
}

TEST(Families, ThatAreNotBuiltAreRefusedByTheirKind) {
  const auto refusal = [](const char* config) -> std::string {
    try {
      (void)family_of_hf(json::parse(config, "config.json"));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(R"({"model_type": "jamba", "num_experts": 16})"),
              AllOf(HasSubstr("\"jamba\" is not built yet"), HasSubstr("mixtures of experts")));
  EXPECT_THAT(refusal(R"({"model_type": "whisper", "num_mel_bins": 80})"),
              AllOf(HasSubstr("\"whisper\" is not built yet"), HasSubstr("models of speech")));
  EXPECT_THAT(refusal(R"({"model_type": "other", "num_experts": 1})"),
              Not(HasSubstr("mixtures of experts")));
}

// The folder of a trained model says how it was trained.
TEST(ComposedModels, SayTheirMaskAndTheirTargets) {
  ModelOptions options("compose");
  config::Problems problems;
  config::Origins origins;
  const Resolved first = tiny("compose", R"("mask": "causal_with_prefix")");
  config::read(first.description, options, problems, origins);
  problems.raise();
  json::Value hf = families().get("compose").to_hf(*options);
  EXPECT_EQ(hf.find("mask")->as_string(), "causal_with_prefix");

  hf["prefix_lm_loss"] = json::Value::boolean(true);
  const ModelOptions read = options_from_hf(hf);
  EXPECT_EQ(resolve(read, kVocab, std::nullopt, problems, config::Origins()).objective.name,
            "prefix_lm");
}

}  // namespace
}  // namespace tessera::models

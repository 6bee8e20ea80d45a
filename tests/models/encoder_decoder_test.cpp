// SPDX-License-Identifier: Apache-2.0
// Encoders with a decoder: published numbers of parameters, how config.json describes versions, the
// inputs of the decoder, initial weights, and what is refused.
#include "tessera/models/encoder_decoder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/model_runner.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"
#include "tessera/models/objective.h"

namespace tessera::models {
namespace {

using test::ModelRunner;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

Resolved resolved(const ModelOptions& options, const ObjectiveChoice& objective = {}) {
  config::Problems problems;
  Resolved out = resolve(
      options, 32100, /*sequence_length=*/std::nullopt, problems, config::Origins(), objective);
  problems.raise();
  return out;
}

std::int64_t parameters(const char* family, const char* preset) {
  ModelOptions options(family);
  options.choose_preset(preset);
  return resolved(options).num_parameters;
}

// The counts of the published checkpoints.
TEST(EncoderDecoder, HasThePublishedNumbersOfParameters) {
  EXPECT_EQ(parameters("t5", "t5-small"), 60'506'624);
  EXPECT_EQ(parameters("t5", "t5-base"), 222'903'552);
  EXPECT_EQ(parameters("t5", "t5-large"), 737'668'096);
  EXPECT_EQ(parameters("t5", "t5-3b"), 2'851'598'336);
  EXPECT_EQ(parameters("t5", "t5-11b"), 11'307'321'344);
  for (const std::string family : {"t5-v1_1-", "flan-t5-"}) {
    EXPECT_EQ(parameters("t5", (family + "small").c_str()), 76'961'152);
    EXPECT_EQ(parameters("t5", (family + "base").c_str()), 247'577'856);
    EXPECT_EQ(parameters("t5", (family + "large").c_str()), 783'150'080);
    EXPECT_EQ(parameters("t5", (family + "xl").c_str()), 2'849'757'184);
    EXPECT_EQ(parameters("t5", (family + "xxl").c_str()), 11'135'332'352);
  }
  EXPECT_EQ(parameters("mt5", "mt5-small"), 300'176'768);
  EXPECT_EQ(parameters("mt5", "mt5-base"), 582'401'280);
  EXPECT_EQ(parameters("mt5", "mt5-large"), 1'229'581'312);
  EXPECT_EQ(parameters("mt5", "mt5-xl"), 3'742'619'648);
  EXPECT_EQ(parameters("mt5", "mt5-xxl"), 12'921'057'280);
}

TEST(EncoderDecoder, TakesTheVersionOfItsPreset) {
  ModelOptions options("t5");
  options.choose_preset("flan-t5-small");

  const Resolved model = resolved(options);

  EXPECT_EQ(model.description.find("activation")->as_string(), "gelu_tanh");
  EXPECT_TRUE(model.description.find("gated")->as_bool());
  EXPECT_FALSE(model.description.find("scale_output")->as_bool());
  EXPECT_FALSE(model.tied_head);
  options.choose_preset("t5-small");
  EXPECT_TRUE(resolved(options).tied_head);
}

TEST(EncoderDecoder, CountsWhatItsBlocksDeclare) {
  for (const char* preset : {"t5-small", "flan-t5-small"}) {
    ModelOptions options("t5");
    options.choose_preset(preset);
    const Resolved model = resolved(options);
    std::int64_t declared = 0;
    for (const auto& info : nn::parameters_of(model.model))
      declared += info->numel();
    EncoderDecoderShape shape;
    shape.num_layers = shape.num_decoder_layers = model.num_layers / 2;
    shape.hidden_size = model.hidden_size;
    shape.num_heads = model.num_heads;
    shape.head_dim = 64;
    shape.vocab_size = model.vocab_size;
    shape.gated = !model.tied_head;
    shape.tie_embeddings = model.tied_head;
    shape.ffn_hidden_size = shape.gated ? 1024 : 2048;

    EXPECT_EQ(shape.num_parameters(), declared) << preset;
  }
}

json::Value config_of(const std::string& rest, const char* type = "t5") {
  return json::parse("{\"model_type\": \"" + std::string(type) + "\"" + rest + "}", "config.json");
}

/// A key of the resolved description.
std::string described(const json::Value& hf_config, const char* key) {
  return resolved(options_from_hf(hf_config)).description.find(key)->dump();
}

TEST(EncoderDecoder, ReadsTheVersionsOfItsConfiguration) {
  const json::Value first = config_of(""),
                    second = config_of(R"(, "feed_forward_proj": "gated-gelu",
                                           "tie_word_embeddings": false)"),
                    // transformers 5 writes the first flag whatever the model is.
      again = config_of(R"(, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": true,
                            "scale_decoder_outputs": false)");

  EXPECT_EQ(described(first, "activation"), "\"relu\"");
  EXPECT_EQ(described(first, "gated"), "false");
  EXPECT_EQ(described(first, "tie_embeddings"), "true");
  EXPECT_EQ(described(first, "scale_output"), "true");
  EXPECT_EQ(described(first, "num_decoder_layers"), "6");
  for (const json::Value& config : {second, again}) {
    EXPECT_EQ(described(config, "activation"), "\"gelu_tanh\"");
    EXPECT_EQ(described(config, "gated"), "true");
    EXPECT_EQ(described(config, "tie_embeddings"), "false");
    EXPECT_EQ(described(config, "scale_output"), "false");
  }
  EXPECT_EQ(described(config_of("", "mt5"), "gated"), "true");
  EXPECT_EQ(described(config_of("", "mt5"), "tie_embeddings"), "false");
  EXPECT_EQ(described(config_of(R"(, "feed_forward_proj": "gated-silu")"), "activation"),
            "\"silu\"");
}

TEST(EncoderDecoder, RefusesConfigurationsThatComputeSomethingElse) {
  const auto refusal = [](const std::string& rest) {
    try {
      (void)options_from_hf(config_of(rest));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };

  EXPECT_THAT(refusal(R"(, "feed_forward_proj": "gated-tanh")"), HasSubstr("feed_forward_proj"));
  EXPECT_THAT(refusal(R"(, "is_encoder_decoder": false)"), HasSubstr("is_encoder_decoder"));
  EXPECT_THAT(refusal(R"(, "relative_attention_num_buckets": 3)"), HasSubstr("num_buckets"));
  EXPECT_THAT(refusal(R"(, "relative_attention_num_buckets": 32,
                          "relative_attention_max_distance": 16)"),
              HasSubstr("num_buckets"));
  EXPECT_THAT(refusal(R"(, "quantization_config": {"bits": 4})"), HasSubstr("quantization"));
}

TEST(EncoderDecoder, HasItsOwnObjectiveUnderOldAndNewNamesOfItsArchitecture) {
  const auto objective = [](const char* architecture) {
    return objective_of_hf(
               config_of(R"(, "architectures": [")" + std::string(architecture) + "\"]"))
        .name;
  };

  EXPECT_EQ(objective("T5ForConditionalGeneration"), "seq2seq");
  EXPECT_EQ(objective("MT5ForConditionalGeneration"), "seq2seq");
  EXPECT_EQ(objective("T5WithLMHeadModel"), "");  // the family's: seq2seq
  EXPECT_EQ(families().get("t5").objective, "seq2seq");
}

TEST(EncoderDecoder, RefusesObjectivesOfOneText) {
  for (const char* objective :
       {"causal_lm", "masked_lm", "sequence_classification", "token_classification"}) {
    EXPECT_THROW((void)resolved(ModelOptions("t5"), {.name = objective}), Error) << objective;
  }
  EXPECT_THROW((void)resolved(ModelOptions("gpt2"), {.name = "seq2seq"}), Error);
}

EncoderDecoderShape small() {
  EncoderDecoderShape shape;
  shape.num_layers = 2;
  shape.num_decoder_layers = 1;
  shape.hidden_size = 24;
  shape.num_heads = 4;
  shape.head_dim = 5;
  shape.ffn_hidden_size = 40;
  shape.vocab_size = 61;
  shape.start_token = 3;
  shape.pad_token = 7;
  shape.gated = true;
  shape.tie_embeddings = false;
  return shape;
}

nn::Model model_of(const EncoderDecoderShape& shape) {
  return with_objective(encoder_decoder_trunk(shape), "seq2seq");
}

nn::Batch batch_of(const at::Tensor& source, const at::Tensor& labels) {
  nn::Batch batch = test::make_batch(source);
  batch.set("labels", labels);
  return batch;
}

at::Tensor tokens(std::int64_t batch, std::int64_t length, std::uint64_t seed) {
  return at::randint(
      8, 61, {batch, length}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kLong);
}

at::Tensor logits_of(ModelRunner& runner, const nn::Batch& batch) {
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;
  return runner.infer(batch, context).outputs.at("logits");
}

TEST(EncoderDecoder, ReadsTheStartAndTheLabelsButTheLast) {
  ModelRunner runner(model_of(small()));
  runner.initialize(5);
  const at::Tensor labels =
      at::tensor({9, 11, -100, 12, 10, -100, -100, -100}, at::kLong).view({2, 4});
  const nn::Batch of_labels = batch_of(tokens(2, 6, 1), labels);
  nn::Batch given = of_labels;
  given.set("decoder_input_ids", at::tensor({3, 9, 11, 7, 3, 10, 7, 7}, at::kLong).view({2, 4}));

  EXPECT_TRUE(at::equal(logits_of(runner, of_labels), logits_of(runner, given)));
}

TEST(EncoderDecoder, SeesNoPaddingAndNoLaterTokens) {
  ModelRunner runner(model_of(small()));
  runner.initialize(5);
  const at::Tensor source = tokens(1, 6, 1), labels = tokens(1, 5, 2);
  const at::Tensor whole = logits_of(runner, batch_of(source, labels));

  nn::Batch padded = batch_of(at::cat({source, tokens(1, 3, 3)}, 1), labels);
  padded.set("attention_mask", at::tensor({1, 1, 1, 1, 1, 1, 0, 0, 0}, at::kLong).view({1, 9}));
  at::Tensor other = labels.clone();
  other[0][3] = 9;  // only the last token reads it

  EXPECT_LT((logits_of(runner, padded) - whole).abs().max().item<float>(), 1e-5);
  const at::Tensor changed = logits_of(runner, batch_of(source, other));
  EXPECT_TRUE(at::equal(changed.narrow(1, 0, 4), whole.narrow(1, 0, 4)));
  EXPECT_FALSE(at::equal(changed.narrow(1, 4, 1), whole.narrow(1, 4, 1)));
}

// As transformers initializes: a projection by the root of its number of inputs, queries also by
// the root of a head's channels, tables by 1.
TEST(EncoderDecoder, BeginsWithThePublishedStandardDeviations) {
  EncoderDecoderShape shape = small();
  shape.hidden_size = 256;
  shape.num_heads = 8;
  shape.head_dim = 16;
  shape.ffn_hidden_size = 300;
  shape.vocab_size = 512;
  shape.init_factor = 2.0;
  ModelRunner runner(model_of(shape));
  runner.initialize(5);
  const auto expect_std = [](const at::Tensor& weight, double expected) {
    // Five standard errors of the estimate.
    const double room = 5 * expected / std::sqrt(2.0 * static_cast<double>(weight.numel()));
    EXPECT_NEAR(weight.square().mean().sqrt().item<double>(), expected, room);
  };
  const auto& weights = runner.weights;
  const std::string layer = "decoder.block.0.layer.";

  expect_std(weights.at("shared.weight"), 2.0);
  expect_std(weights.at("lm_head.weight"), 2.0);
  for (const at::Tensor& q : {weights.at(layer + "0.SelfAttention.qkv.weight")[0],
                              weights.at(layer + "1.EncDecAttention.q.weight")})
    expect_std(q, 2.0 / std::sqrt(256.0 * 16.0));
  for (const at::Tensor& kv : {weights.at(layer + "0.SelfAttention.qkv.weight").narrow(0, 1, 2),
                               weights.at(layer + "1.EncDecAttention.kv.weight")})
    expect_std(kv, 2.0 / 16.0);
  expect_std(weights.at(layer + "0.SelfAttention.o.weight"), 2.0 / std::sqrt(128.0));
  expect_std(weights.at(layer + "1.EncDecAttention.o.weight"), 2.0 / std::sqrt(128.0));
  expect_std(weights.at(layer + "2.DenseReluDense.wi.weight"), 2.0 / 16.0);
  expect_std(weights.at(layer + "2.DenseReluDense.wo.weight"), 2.0 / std::sqrt(300.0));
  expect_std(weights.at(layer + "0.SelfAttention.relative_attention_bias.weight"), 2.0 / 16.0);
}

std::vector<std::string> names_of_theirs(const EncoderDecoderShape& shape) {
  std::vector<std::string> out;
  const Parameters parameters = nn::parameters_of(model_of(shape));
  for (const TheirTensor& tensor : their_tensors(families().get("t5").weight_map, parameters))
    out.push_back(tensor.name);
  return out;
}

TEST(EncoderDecoder, StoresOneTableOfDistancesForEachStack) {
  const std::vector<std::string> names = names_of_theirs(small());

  const auto tables = std::ranges::count_if(names, [](const std::string& name) {
    return name.find("relative_attention_bias") != std::string::npos;
  });
  EXPECT_EQ(tables, 2);
  EXPECT_THAT(names,
              Contains("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"));
  EXPECT_THAT(names, Contains("encoder.block.1.layer.1.DenseReluDense.wi_1.weight"));
  EXPECT_THAT(names, Contains("decoder.block.0.layer.1.EncDecAttention.k.weight"));
  EXPECT_THAT(names, Contains("lm_head.weight"));
  EncoderDecoderShape tied = small();
  tied.tie_embeddings = true;
  EXPECT_THAT(names_of_theirs(tied), Not(Contains("lm_head.weight")));
}

/// Losses of some steps on one batch, with dropout.
std::vector<double> losses_with_dropout(comm::World* world) {
  EncoderDecoderShape shape = small();
  shape.dropout = 0.3;
  ModelRunner runner(model_of(shape), DType::F32, world);
  runner.initialize(5);
  const nn::Batch batch = batch_of(tokens(3, 6, 1), tokens(3, 5, 2));
  return {runner.train(batch, 1), runner.train(batch, 2)};
}

TEST(EncoderDecoder, DropsTheSameOnTensorParallelRanks) {
  const std::vector<double> alone = losses_with_dropout(nullptr);
  EXPECT_GT(std::abs(alone[0] - alone[1]), 1e-3);  // two seeds differ

  comm::run_threads(mesh::Mesh({.tp_col = 2}), [&](comm::World& world) {
    const std::vector<double> shared = losses_with_dropout(&world);
    // Only the order of the sums differs.
    for (std::size_t i = 0; i < alone.size(); ++i)
      EXPECT_NEAR(shared[i], alone[i], 1e-5);
  });
}

}  // namespace
}  // namespace tessera::models

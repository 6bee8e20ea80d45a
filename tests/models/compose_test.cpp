// SPDX-License-Identifier: Apache-2.0
// Composed models beyond those whose answers are recorded: biases of the attention of a decoder to
// its encoder.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/model_runner.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/models/family.h"

namespace tessera::models {
namespace {

using test::ModelRunner;

constexpr const char* kAttention = "decoder.transformer_decoder.0.context_attn.";
constexpr double kRounding = 1e-5;  // of logits of a few units in fp32

Resolved answering() {
  ModelOptions options("compose");
  config::Problems problems;
  config::Origins origins;
  const json::Value value = json::parse_strict(
      R"({"family": "compose", "num_layers": 1, "num_decoder_layers": 1, "hidden_size": 16,
          "num_heads": 2, "vocab_size": 40, "embedding": ["word"], "mask": "fully_visible",
          "position": "relative", "decoder": "transformer"})",
      "test");
  config::read(value, options, problems, origins);
  problems.raise();
  Resolved out = resolve(options, 40, std::nullopt, problems, config::Origins());
  problems.raise();
  return out;
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

}  // namespace
}  // namespace tessera::models

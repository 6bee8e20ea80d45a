// SPDX-License-Identifier: Apache-2.0
// Initial weights of every family, by the kind of parameter, against the rules of the programs from
// which the families come. In transformers 5.24, PreTrainedModel._init_weights draws the weights of
// linear, convolution and embedding layers from a normal distribution of deviation
// initializer_range (0.02, also in the published configurations of OPT as init_std), sets biases to
// 0 and the weights of norms to 1. The exceptions are in _init_weights of the family's own class:
//   GPT2PreTrainedModel        c_proj: divided by the root of twice the number of layers
//   Gemma(2, 3)PreTrainedModel norms are 1 + weight: weights 0
//   T5, MT5PreTrainedModel     by the number of inputs, and for queries also by the channels of a
//                              head; both tables of tokens 1
//   ModernBertPreTrainedModel  truncated at two deviations; projections to the residual stream, the
//                              dense layer of a head and an untied decoder divided as in GPT-2; a
//                              classifier hidden_size^-0.5
//   ViTPreTrainedModel         positions and class token truncated at +-2, which is 100 deviations
//                              and changes nothing
// transformers also sets the row of the padding token to 0; here it is drawn like the others.
// cpm1 has ModelCenter's init_std of 0.02, and cpm2 the rules of T5, on which it builds. A composed
// model has TencentPretrain's 0.02, with biases of 0, as its option deep_init has them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/models/family.h"
#include "tessera/tensor/init.h"

namespace tessera::models {
namespace {

constexpr double kStd = 0.02;
// The deviation of a normal distribution that is truncated at two deviations.
constexpr double kTruncated = 0.879626;
constexpr std::int64_t kTokens = 512;

Resolved resolved(const std::string& family, const ObjectiveChoice& objective = {}) {
  config::Problems problems;
  Resolved out = resolve(ModelOptions(family), kTokens, 32, problems, config::Origins(), objective);
  problems.raise();
  return out;
}

bool has(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

/// Sizes of a model, from its description.
struct Facts {
  double layers = 0, width = 0, heads = 0, head = 0, inner = 0;
  explicit Facts(const Resolved& model) {
    const auto number = [&](const char* key, double absent) {
      const json::Value* const found = model.description.find(key);
      return found != nullptr && found->is_number() ? found->as_double() : absent;
    };
    layers = number("num_layers", 0);
    width = number("hidden_size", 0);
    heads = number("num_heads", 0);
    head = number("head_dim", width / heads);
    inner = number("ffn_hidden_size", 0);
  }
};

/// Deviation of the first index of the first dim, and of the others.
struct Deviations {
  double first = 0, others = 0;
};
Deviations same(double std) {
  return {std, std};
}

Deviations of_t5(const std::string& name, const Facts& facts) {
  const auto root = [](double inputs) { return 1 / std::sqrt(inputs); };
  if (name == "shared.weight" || name == "lm_head.weight") return same(1.0);
  if (has(name, "SelfAttention.qkv.")) return {root(facts.width * facts.head), root(facts.width)};
  if (has(name, "EncDecAttention.q.")) return same(root(facts.width * facts.head));
  if (has(name, ".o.weight")) return same(root(facts.heads * facts.head));
  if (has(name, ".wo.weight")) return same(root(facts.inner));
  return same(root(facts.width));
}

Deviations of_modernbert(const std::string& name, const Facts& facts) {
  const double out = kStd / std::sqrt(2 * facts.layers);
  if (name == "classifier.weight") return same(kTruncated / std::sqrt(facts.width));
  const bool to_stream =
      has(name, ".Wo.") || name == "head.dense.weight" || name == "decoder.weight";
  return same(kTruncated * (to_stream ? out : kStd));
}

Deviations expected(const std::string& family, const ParamInfo& info, const Facts& facts) {
  const std::string& name = info.name;
  const bool switches = family == "switch_transformers";
  if (switches && has(name, ".mlp.gate.")) return same(1.0);
  // transformers divides by the root of the width also where an expert has d_ff inputs.
  if (switches && has(name, ".mlp.experts.")) return same(1 / std::sqrt(facts.width));
  if (family == "t5" || family == "mt5" || family == "cpm2" || switches) return of_t5(name, facts);
  if (family == "modernbert") return of_modernbert(name, facts);
  if (family == "gpt2" && has(name, "c_proj.")) return same(kStd / std::sqrt(2 * facts.layers));
  // The initializer_range of JetMoeConfig.
  if (family == "jetmoe") return same(0.01);
  return same(kStd);
}

/// The value of a vector: 0 for a bias, 1 for the weight of a norm that is not stored less 1.
double value_of_vector(const std::string& family, const std::string& name) {
  return name.ends_with("bias") || family.starts_with("gemma") ? 0.0 : 1.0;
}

/// The first elements from `begin` on, at most `count`.
at::Tensor drawn(const ParamInfo& info, std::int64_t begin, std::int64_t count) {
  constexpr std::int64_t kEnough = 1 << 15;
  at::Tensor out = at::empty({std::min(count, kEnough)}, at::kFloat);
  initialize_range(info, 3, begin, out);
  return out;
}

void expect_deviation(const at::Tensor& values, double std, const std::string& what) {
  const auto count = static_cast<double>(values.numel());
  const double found = values.to(at::kDouble).square().mean().sqrt().item<double>();
  // Five standard errors of the deviation, and of the mean.
  EXPECT_NEAR(found, std, 5 * std / std::sqrt(2 * count)) << what;
  EXPECT_NEAR(values.to(at::kDouble).mean().item<double>(), 0.0, 5 * std / std::sqrt(count))
      << what;
}

void expect_initial_weights(const std::string& family, const ObjectiveChoice& objective = {}) {
  SCOPED_TRACE(family + " " + objective.name);
  const Resolved model = resolved(family, objective);
  const Facts facts(model);
  std::set<std::string> seen;
  for (const auto& info : nn::parameters_of(model.model)) {
    if (!seen.insert(info->name).second) continue;
    const at::Tensor values = drawn(*info, 0, info->numel());
    // Attention sinks begin as random numbers, as in transformers.
    if (info->role == Role::Vector && !info->name.ends_with("sinks")) {
      EXPECT_TRUE(values.eq(value_of_vector(family, info->name)).all().item<bool>()) << info->name;
      continue;
    }
    const Deviations std = expected(family, *info, facts);
    if (std.first != std.others) {
      const std::int64_t first = info->numel() / info->shape.front();
      expect_deviation(drawn(*info, 0, first), std.first, info->name + ", first part");
      expect_deviation(
          drawn(*info, first, info->numel() - first), std.others, info->name + ", rest");
      continue;
    }
    expect_deviation(values, std.first, info->name);
    if (family == "modernbert") {
      EXPECT_LE(values.abs().max().item<double>(), 2 * std.first / kTruncated * (1 + 1e-6))
          << info->name;
    }
  }
}

TEST(Initialization, OfEveryFamilyIsThatOfItsSource) {
  for (const std::string& family : families().names()) {
    if (family == "imaginary") continue;  // a family of the tests
    expect_initial_weights(family);
  }
}

TEST(Initialization, OfHeadsForClassesIsThatOfItsSource) {
  const ObjectiveChoice classes = {"sequence_classification",
                                   json::Value::object({{"num_labels", json::Value::integer(64)}})};
  for (const char* family : {"bert",
                             "megatron-bert",
                             "roberta",
                             "xlm-roberta",
                             "distilbert",
                             "modernbert",
                             "gpt2",
                             "llama"})
    expect_initial_weights(family, classes);
}

TEST(Initialization, OfTheSameModelIsSmallerWithMoreLayersWhereTheSourceHasIt) {
  const auto spread = [](std::int64_t layers) {
    ModelOptions options("modernbert");
    options->num_layers = layers;
    options->hidden_size = 128;
    options->num_heads = 4;
    config::Problems problems;
    const Resolved model = resolve(options, kTokens, 32, problems, config::Origins());
    problems.raise();
    for (const auto& info : nn::parameters_of(model.model)) {
      if (info->name != "layers.0.mlp.Wo.weight") continue;
      const at::Tensor values = drawn(*info, 0, info->numel());
      return values.square().mean().sqrt().item<double>();
    }
    return 0.0;
  };

  EXPECT_NEAR(spread(1) / spread(16), 4.0, 0.1);
}

}  // namespace
}  // namespace tessera::models

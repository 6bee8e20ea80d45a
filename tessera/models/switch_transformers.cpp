// SPDX-License-Identifier: Apache-2.0
// Switch Transformers: T5 with experts in some layers of both stacks, of which each token uses one.
// An expert has a capacity for each sample, in evaluation too. Source: Fedus et al. 2021, "Switch
// transformers: scaling to trillion parameter models with simple and efficient sparsity".
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/encoder_decoder_options.h"

namespace tessera::models {
namespace {

constexpr std::int64_t kVocabulary = 32128;
constexpr std::int64_t kExperts = 8, kCapacity = 64;
constexpr double kJitter = 0.01, kCoefficient = 0.001;

Preset published(std::string name,
                 std::int64_t layers,
                 std::int64_t hidden,
                 std::int64_t heads,
                 std::int64_t ffn,
                 std::int64_t experts,
                 std::vector<PresetValue> more = {}) {
  Preset out = {.name = std::move(name),
                .num_layers = layers,
                .hidden_size = hidden,
                .num_heads = heads,
                .ffn_hidden_size = ffn,
                .vocab_size = kVocabulary,
                .head_dim = 64};
  out.values = std::move(more);
  out.values.push_back({"moe.num_experts", experts});
  return out;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> out = {nano("switch-nano", 4, 128, 4)};
    for (const std::int64_t experts : {8, 16, 32, 64, 128, 256})
      out.push_back(published(fmt::format("switch-base-{}", experts), 12, 768, 12, 3072, experts));
    out.push_back(published("switch-large-128", 24, 1024, 16, 4096, 128));
    out.push_back(published(
        "switch-c-2048",
        15,
        2080,
        32,
        6144,
        2048,
        {{"moe.encoder_layers", std::int64_t{15}}, {"moe.decoder_layers", std::int64_t{15}}}));
    return out;
  }();
  return all;
}

/// The keys `model.moe` of this family.
struct SwitchExperts {
  struct Router {
    double jitter = kJitter;
    bool bias = false;
    void describe(config::Fields& fields) {
      fields.field("jitter",
                   jitter,
                   {.text = "In training, each number that the router reads is multiplied by a "
                            "random one between 1 - jitter and 1 + jitter.",
                    .min = 0,
                    .max = 1});
      fields.field("bias", bias, {.text = "Whether the router's logits have a bias."});
    }
  };
  struct Losses {
    double sequence_balance = kCoefficient, z = kCoefficient;
    void describe(config::Fields& fields) {
      const std::string where =
          " As in transformers, a stack in which all layers are sparse has "
          "no such loss; 0: none.";
      fields.field("sequence_balance",
                   sequence_balance,
                   {.text = "Coefficient of the balance loss over the tokens of a sample in all "
                            "sparse layers of a stack, padding included." +
                            where,
                    .min = 0,
                    .max = 1e3});
      fields.field(
          "z",
          z,
          {.text = "Coefficient of the squared logsumexp of the router's logits, as a mean "
                   "over these tokens." +
                   where,
           .min = 0,
           .max = 1e3});
    }
  };

  std::int64_t num_experts = kExperts;
  std::optional<std::int64_t> encoder_layers, decoder_layers;
  std::int64_t expert_capacity = kCapacity;
  Router router;
  Losses losses;

  void describe(config::Fields& fields) {
    fields.field("num_experts",
                 num_experts,
                 {.text = "Number of experts of a sparse layer, of which a token uses one.",
                  .min = 1,
                  .max = 1e5});
    const auto layers = [&](const char* key,
                            std::optional<std::int64_t>& value,
                            const char* stack) {
      fields.field(key,
                   value,
                   {.text = fmt::format("Number N of sparse layers of the {}: every (layers / N)th "
                                        "layer, beginning with layer 1 (from 0); all of them if N "
                                        "is the number of layers.",
                                        stack),
                    .min = 1,
                    .max = 1e4,
                    .default_text = "half of its layers"});
    };
    layers("encoder_layers", encoder_layers, "encoder");
    layers("decoder_layers", decoder_layers, "decoder");
    fields.field(
        "expert_capacity",
        expert_capacity,
        {.text = "Largest number of tokens of a sample that an expert accepts, in training "
                 "and in evaluation; the later ones only have the residual connection. "
                 "The decoder drops none in generation. 0: all tokens.",
         .unit = "tokens",
         .min = 0,
         .max = 1e9});
    fields.section("router", router, "Choice of experts");
    fields.section("losses", losses, "Terms of the loss that balance experts");
  }

  [[nodiscard]] std::int64_t layers_of(bool decoder, std::int64_t count) const {
    return (decoder ? decoder_layers : encoder_layers)
        .value_or(std::max<std::int64_t>(count / 2, 1));
  }
};

/// The distance between sparse layers.
std::int64_t step_of(std::int64_t layers, std::int64_t sparse) {
  return std::max<std::int64_t>(layers / std::max<std::int64_t>(sparse, 1), 1);
}

std::vector<bool> sparse_layers(std::int64_t layers, std::int64_t step) {
  std::vector<bool> out;
  for (std::int64_t i = 0; i < layers; ++i)
    out.push_back(step == 1 || i % step == 1);
  return out;
}

StackExperts experts_of(const SwitchExperts& moe, const EncoderDecoderShape& shape, bool decoder) {
  const std::int64_t layers = decoder ? shape.num_decoder_layers : shape.num_layers,
                     step = step_of(layers, moe.layers_of(decoder, layers));
  StackExperts out = {.sparse = sparse_layers(layers, step)};
  const std::string module = fmt::format("layer.{}.mlp", decoder ? 2 : 1);
  const double std = shape.init_factor /
                     std::sqrt(static_cast<double>(std::max<std::int64_t>(shape.hidden_size, 1)));
  out.spec = {
      .hidden_size = shape.hidden_size,
      .ffn_hidden_size = shape.ffn_hidden_size,
      .num_experts = moe.num_experts,
      .router = {.top_k = 1, .bias = moe.router.bias},
      .jitter = moe.router.jitter,
      .router_name = module + ".gate",
      .input_name = module + ".experts.wi",
      .output_name = module + ".experts.wo",
      .activation = {.name = shape.activation, .gated = false},
      .capacity = {.tokens = moe.expert_capacity,
                   .per_sample = true,
                   .use = decoder ? ops::CapacityUse::Evaluation : ops::CapacityUse::Always},
      .router_init = Init::normal(shape.init_factor),
      .input_init = Init::normal(std),
      .output_init = Init::normal(std)};
  if (step > 1) {
    out.spec.balance = {.sequence = moe.losses.sequence_balance,
                        .z = moe.losses.z,
                        .pooled_samples = true,
                        .z_layers = std::count(out.sparse.begin(), out.sparse.end(), true),
                        .padding = true};
  }
  return out;
}

struct SwitchOptions final : EncoderDecoderOptions {
  SwitchExperts moe;

  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<SwitchOptions>(*this);
  }
  void describe(config::Fields& fields) override {
    describe_all(fields, presets());
    fields.section("moe", moe, "Experts instead of the MLP in some layers of both stacks.");
  }

  void add_experts(EncoderDecoderShape& shape, Checks& checks) const override {
    checks.require(!shape.gated,
                   "model.gated",
                   "the MLPs and experts of this family have no gate",
                   "remove gated");
    shape.gated = false;
    for (const bool decoder : {false, true}) {
      const std::int64_t layers = decoder ? shape.num_decoder_layers : shape.num_layers,
                         sparse = moe.layers_of(decoder, layers);
      checks.require(sparse <= layers,
                     decoder ? "model.moe.decoder_layers" : "model.moe.encoder_layers",
                     fmt::format("{} sparse layers of {}", sparse, layers),
                     fmt::format("set it to at most {}", layers));
      (decoder ? shape.decoder_experts : shape.encoder_experts) =
          models::experts_of(moe, shape, decoder);
    }
  }
  void describe_experts(const EncoderDecoderShape& shape) override {
    moe.encoder_layers = moe.layers_of(false, shape.num_layers);
    moe.decoder_layers = moe.layers_of(true, shape.num_decoder_layers);
  }
};

const char* layers_key(bool decoder) {
  return decoder ? "num_sparse_decoder_layers" : "num_sparse_encoder_layers";
}

/// Reads the number of sparse layers. transformers makes layer 1 sparse if the number is 0.
std::int64_t read_layers(const HfConfig& keys, bool decoder, std::int64_t layers) {
  const char* const key = layers_key(decoder);
  const double count = keys.number(key, 3, 0, 1e4);
  keys.refuse(key,
              count == std::floor(count) && count <= static_cast<double>(layers),
              "a whole number up to the number of layers");
  return std::max<std::int64_t>(static_cast<std::int64_t>(count), 1);
}

void read(const HfConfig& keys, SwitchOptions& out) {
  keys.refuse("feed_forward_proj", !out.gated, "MLPs without a gate");
  keys.refuse("is_gated_act", !keys.flag("is_gated_act", false), "MLPs without a gate");
  out.activation = keys.activation("dense_act_fn", "relu");
  SwitchExperts& moe = out.moe;
  moe.num_experts = keys.count("num_experts", kExperts, 1e5);
  moe.expert_capacity = keys.count("expert_capacity", kCapacity, 1e9);
  moe.encoder_layers = read_layers(keys, false, *out.num_layers);
  moe.decoder_layers = read_layers(keys, true, *out.num_decoder_layers);
  moe.router.bias = keys.flag("router_bias", false);
  moe.router.jitter = keys.number("router_jitter_noise", kJitter, 0, 1);
  const std::string dtype = keys.word("router_dtype", "float32");
  keys.refuse("router_dtype", dtype == "float32", "float32, in which routers compute here");
  moe.losses.sequence_balance = keys.number("router_aux_loss_coef", kCoefficient, 0, 1e3);
  moe.losses.z = keys.number("router_z_loss_coef", kCoefficient, 0, 1e3);
  if (!keys.flag("output_router_logits", true)) moe.losses = {.sequence_balance = 0.0, .z = 0.0};
}

void write(const SwitchOptions& options, json::Value& out) {
  constexpr const char* kArchitecture = "SwitchTransformersForConditionalGeneration";
  const SwitchExperts& moe = options.moe;
  TESSERA_REQUIRE(moe.expert_capacity > 0,
                  Unsupported,
                  fmt::format("model.moe.expert_capacity is 0, and Hugging Face's {} has a "
                              "capacity",
                              kArchitecture),
                  "set it to data.sequence_length or more, which drops no token");
  std::erase_if(out.members(), [](const auto& member) {
    return member.first == "feed_forward_proj" || member.first == "n_positions";
  });
  out["dense_act_fn"] = json::Value::string(activation_to_hf(options.activation));
  out["num_experts"] = json::Value::integer(moe.num_experts);
  out["expert_capacity"] = json::Value::integer(moe.expert_capacity);
  out[layers_key(false)] = json::Value::integer(moe.encoder_layers.value());
  out[layers_key(true)] = json::Value::integer(moe.decoder_layers.value());
  out["router_bias"] = json::Value::boolean(moe.router.bias);
  out["router_jitter_noise"] = real_to_hf(moe.router.jitter);
  out["router_dtype"] = json::Value::string("float32");
  out["router_aux_loss_coef"] = real_to_hf(moe.losses.sequence_balance);
  out["router_z_loss_coef"] = real_to_hf(moe.losses.z);
}

std::string replaced(std::string name, std::string_view ours, const std::string& theirs) {
  return name.replace(name.find(ours), ours.size(), theirs);
}

Composition compose(const ParamInfo& info) {
  constexpr std::string_view kStacked = ".mlp.experts.", kGate = ".mlp.gate.",
                             kDense = ".DenseReluDense.";
  const std::string& name = info.name;
  if (name.find(kGate) != std::string::npos)
    return Composition::of(replaced(name, kGate, ".mlp.router.classifier."), info.shape);
  if (name.find(kDense) != std::string::npos)
    return Composition::of(replaced(name, kDense, ".mlp."), info.shape);
  if (name.find(kStacked) == std::string::npos) return compose_encoder_decoder(info);
  Shape one = info.shape;
  one.front() = 1;
  std::vector<Composition> experts;
  for (std::int64_t e = 0; e < info.shape.front(); ++e) {
    experts.push_back(
        Composition::of(replaced(name, kStacked, fmt::format(".mlp.experts.expert_{}.", e)),
                        Shape(info.shape.begin() + 1, info.shape.end()))
            .viewed(one));
  }
  return Composition::concat(std::move(experts), 0);
}

WeightMap weights() {
  WeightMap out = encoder_decoder_weights();
  out.compose = compose;
  return out;
}

TESSERA_MODEL("switch_transformers",
              EncoderDecoderFamilyOf<SwitchOptions>{
                  .presets = presets(),
                  .hf = {.model_type = "switch_transformers",
                         .architecture = "SwitchTransformersForConditionalGeneration",
                         .vocab = kVocabulary,
                         .hidden = 768,
                         .ffn = 2048,
                         .layers = 12,
                         .heads = 12,
                         .feed_forward = "relu",
                         .tied = true},
                  .read = read,
                  .write = write,
                  .weight_map = weights(),
                  .adjustable = {{"dropout"},
                                 {"init_factor"},
                                 {"label_smoothing"},
                                 {"moe.expert_capacity"},
                                 {"moe.router.jitter"},
                                 {"moe.losses.sequence_balance"},
                                 {"moe.losses.z"}}});

}  // namespace
}  // namespace tessera::models

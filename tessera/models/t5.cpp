// SPDX-License-Identifier: Apache-2.0
// T5 and its versions: 1.0, whose MLP has the activation relu and whose head shares the token
// table; 1.1, whose MLP has a gate and whose head has a weight of its own; Flan-T5, which is 1.1
// trained on instructions.  Source: Raffel et al. 2020, "Exploring the limits of transfer learning
// with a unified text-to-text transformer"; Chung et al. 2022, "Scaling instruction-finetuned
// language models".
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/encoder_decoder_options.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

constexpr std::int64_t kVocabulary = 32128;

/// A model of version 1.0, or with `gated` of 1.1.
Preset published(std::string name,
                 std::int64_t layers,
                 std::int64_t hidden,
                 std::int64_t heads,
                 std::int64_t ffn,
                 std::int64_t head_dim,
                 bool gated) {
  Preset out = {.name = std::move(name),
                .num_layers = layers,
                .hidden_size = hidden,
                .num_heads = heads,
                .ffn_hidden_size = ffn,
                .head_dim = head_dim,
                .vocab_size = kVocabulary};
  if (gated) {
    out.values = {
        {"activation", std::string("gelu_tanh")}, {"gated", true}, {"tie_embeddings", false}};
  }
  return out;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> out = {
        {.name = "t5-nano", .num_layers = 2, .hidden_size = 128, .num_heads = 4, .bytes = true},
        published("t5-small", 6, 512, 8, 2048, 64, false),
        published("t5-base", 12, 768, 12, 3072, 64, false),
        published("t5-large", 24, 1024, 16, 4096, 64, false),
        published("t5-3b", 24, 1024, 32, 16384, 128, false),
        published("t5-11b", 24, 1024, 128, 65536, 128, false),
    };
    for (const std::string begin : {"t5-v1_1-", "flan-t5-"}) {
      out.push_back(published(begin + "small", 8, 512, 6, 1024, 64, true));
      out.push_back(published(begin + "base", 12, 768, 12, 2048, 64, true));
      out.push_back(published(begin + "large", 24, 1024, 16, 2816, 64, true));
      out.push_back(published(begin + "xl", 24, 2048, 32, 5120, 64, true));
      out.push_back(published(begin + "xxl", 24, 4096, 64, 10240, 64, true));
    }
    return out;
  }();
  return all;
}

struct T5Options final : EncoderDecoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<T5Options>(*this);
  }
  void describe(config::Fields& fields) override { describe_all(fields, presets()); }
};

TESSERA_MODEL("t5",
              EncoderDecoderFamilyOf<T5Options>{.presets = presets(),
                                                .hf = {.model_type = "t5",
                                                       .architecture = "T5ForConditionalGeneration",
                                                       .vocab = kVocabulary,
                                                       .hidden = 512,
                                                       .ffn = 2048,
                                                       .layers = 6,
                                                       .heads = 8,
                                                       .feed_forward = "relu",
                                                       .tied = true}});

TESSERA_MODULE_ORDER("t5", {.modules = encoder_decoder_modules()});

}  // namespace
}  // namespace tessera::models

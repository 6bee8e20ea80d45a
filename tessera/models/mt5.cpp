// SPDX-License-Identifier: Apache-2.0
// mT5: an encoder-decoder family with gated MLPs, a multilingual vocabulary and an untied head.
// Source: Xue et al. 2021, "mT5: a massively multilingual pre-trained text-to-text transformer".
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/encoder_decoder_options.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

constexpr std::int64_t kVocabulary = 250112;

Preset published(std::string name,
                 std::int64_t layers,
                 std::int64_t hidden,
                 std::int64_t heads,
                 std::int64_t ffn) {
  return {.name = std::move(name),
          .num_layers = layers,
          .hidden_size = hidden,
          .num_heads = heads,
          .ffn_hidden_size = ffn,
          .vocab_size = kVocabulary,
          .head_dim = 64};
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {nano("mt5-nano", 2, 128, 4),
                                          published("mt5-small", 8, 512, 6, 1024),
                                          published("mt5-base", 12, 768, 12, 2048),
                                          published("mt5-large", 24, 1024, 16, 2816),
                                          published("mt5-xl", 24, 2048, 32, 5120),
                                          published("mt5-xxl", 24, 4096, 64, 10240)};
  return all;
}

struct Mt5Options final : EncoderDecoderOptions {
  Mt5Options() {
    activation = "gelu_tanh";
    gated = true;
    tie_embeddings = false;
  }
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Mt5Options>(*this);
  }
  void describe(config::Fields& fields) override { describe_all(fields, presets()); }
};

TESSERA_MODEL("mt5",
              EncoderDecoderFamilyOf<Mt5Options>{
                  .presets = presets(),
                  .hf = {.model_type = "mt5",
                         .architecture = "MT5ForConditionalGeneration",
                         .vocab = kVocabulary,
                         .hidden = 512,
                         .ffn = 1024,
                         .layers = 8,
                         .heads = 6,
                         .feed_forward = "gated-gelu",
                         .tied = false,
                         .scaled_since_5 = false}});

TESSERA_MODULE_ORDER("mt5", {.modules = encoder_decoder_modules()});

}  // namespace
}  // namespace tessera::models

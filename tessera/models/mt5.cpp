// SPDX-License-Identifier: Apache-2.0
// mT5: an encoder with a decoder whose MLPs have a gate, with a vocabulary of many languages and a
// head of its own.  Source: Xue et al. 2021, "mT5: a massively multilingual pre-trained
// text-to-text transformer".
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/encoder_decoder_options.h"
#include "tessera/models/module_order.h"

namespace tessera::models {
namespace {

EncoderDecoderPreset preset(std::string name,
                            std::int64_t layers,
                            std::int64_t hidden,
                            std::int64_t heads,
                            std::int64_t ffn) {
  return {.sizes = {.name = std::move(name),
                    .num_layers = layers,
                    .hidden_size = hidden,
                    .num_heads = heads,
                    .ffn_hidden_size = ffn,
                    .head_dim = 64},
          .gated = true};
}

const std::vector<EncoderDecoderPreset>& presets() {
  static const std::vector<EncoderDecoderPreset> all = [] {
    std::vector<EncoderDecoderPreset> out = {preset("mt5-nano", 2, 128, 4, 256),
                                             preset("mt5-small", 8, 512, 6, 1024),
                                             preset("mt5-base", 12, 768, 12, 2048),
                                             preset("mt5-large", 24, 1024, 16, 2816),
                                             preset("mt5-xl", 24, 2048, 32, 5120),
                                             preset("mt5-xxl", 24, 4096, 64, 10240)};
    out.front().sizes.bytes = true;
    return out;
  }();
  return all;
}

struct Mt5Options final : EncoderDecoderOptions {
  [[nodiscard]] std::unique_ptr<FamilyOptions> clone() const override {
    return std::make_unique<Mt5Options>(*this);
  }
  void describe(config::Fields& fields) override { describe_all(fields, presets()); }
};

Resolved resolve_mt5(const Mt5Options& options,
                     std::int64_t tokenizer_size,
                     std::optional<std::int64_t> sequence_length,
                     config::Problems& problems,
                     const config::Origins& origins) {
  return resolve_encoder_decoder(
      "mt5", presets(), options, tokenizer_size, sequence_length, problems, origins);
}

Mt5Options from_hf(const json::Value& config) {
  Mt5Options out;
  read_encoder_decoder(
      HfConfig(config), {"mt5", 250112, 512, 1024, 8, 6, "gated-gelu", false}, out);
  return out;
}

json::Value to_hf(const Mt5Options& options) {
  return encoder_decoder_to_hf(options, "MT5ForConditionalGeneration", "mt5");
}

TESSERA_MODEL("mt5",
              FamilyOf<Mt5Options>{.presets = sizes_of(presets()),
                                   .adjustable = adjustable_of_encoder_decoder(),
                                   .resolve = resolve_mt5,
                                   .from_hf = from_hf,
                                   .to_hf = to_hf,
                                   .weight_map = encoder_decoder_weights(),
                                   .objective = "seq2seq"});

TESSERA_MODULE_ORDER("mt5", {.modules = encoder_decoder_modules()});

}  // namespace
}  // namespace tessera::models

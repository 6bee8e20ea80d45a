// SPDX-License-Identifier: Apache-2.0
// T5 and its versions: 1.0, whose MLP has the activation relu and whose head shares the token
// table; 1.1, whose MLP has a gate and whose head has a weight of its own; Flan-T5, which is 1.1
// trained on instructions.  Source: Raffel et al. 2020, "Exploring the limits of transfer learning
// with a unified text-to-text transformer"; Chung et al. 2022, "Scaling instruction-finetuned
// language models".
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
                            std::int64_t ffn,
                            std::int64_t head_dim,
                            bool gated) {
  return {.sizes = {.name = std::move(name),
                    .num_layers = layers,
                    .hidden_size = hidden,
                    .num_heads = heads,
                    .ffn_hidden_size = ffn,
                    .head_dim = head_dim},
          .gated = gated};
}

const std::vector<EncoderDecoderPreset>& presets() {
  static const std::vector<EncoderDecoderPreset> all = [] {
    std::vector<EncoderDecoderPreset> out = {
        preset("t5-nano", 2, 128, 4, 512, 32, false),
        preset("t5-small", 6, 512, 8, 2048, 64, false),
        preset("t5-base", 12, 768, 12, 3072, 64, false),
        preset("t5-large", 24, 1024, 16, 4096, 64, false),
        preset("t5-3b", 24, 1024, 32, 16384, 128, false),
        preset("t5-11b", 24, 1024, 128, 65536, 128, false),
    };
    out.front().sizes.bytes = true;
    for (const std::string begin : {"t5-v1_1-", "flan-t5-"}) {
      out.push_back(preset(begin + "small", 8, 512, 6, 1024, 64, true));
      out.push_back(preset(begin + "base", 12, 768, 12, 2048, 64, true));
      out.push_back(preset(begin + "large", 24, 1024, 16, 2816, 64, true));
      out.push_back(preset(begin + "xl", 24, 2048, 32, 5120, 64, true));
      out.push_back(preset(begin + "xxl", 24, 4096, 64, 10240, 64, true));
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

Resolved resolve_t5(const T5Options& options,
                    std::int64_t tokenizer_size,
                    std::optional<std::int64_t> sequence_length,
                    config::Problems& problems,
                    const config::Origins& origins) {
  return resolve_encoder_decoder(
      "t5", presets(), options, tokenizer_size, sequence_length, problems, origins);
}

T5Options from_hf(const json::Value& config) {
  T5Options out;
  read_encoder_decoder(HfConfig(config), {"t5", 32128, 512, 2048, 6, 8, "relu", true}, out);
  return out;
}

json::Value to_hf(const T5Options& options) {
  return encoder_decoder_to_hf(options, "T5ForConditionalGeneration", "t5");
}

TESSERA_MODEL("t5",
              FamilyOf<T5Options>{.presets = sizes_of(presets()),
                                  .adjustable = adjustable_of_encoder_decoder(),
                                  .resolve = resolve_t5,
                                  .from_hf = from_hf,
                                  .to_hf = to_hf,
                                  .weight_map = encoder_decoder_weights(),
                                  .objective = "seq2seq"});

TESSERA_MODULE_ORDER("t5", {.modules = encoder_decoder_modules()});

}  // namespace
}  // namespace tessera::models

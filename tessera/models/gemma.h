// SPDX-License-Identifier: Apache-2.0
// The parts that the versions of Gemma have in common. Source: Gemma team 2024, "Gemma: open models
// based on Gemini research and technology".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/models/decoder.h"
#include "tessera/models/decoder_hf.h"
#include "tessera/models/decoder_options.h"
#include "tessera/models/decoder_weights.h"
#include "tessera/models/gguf_names.h"

namespace tessera::models {

/// Options of the versions with soft caps and windows: 2 and 3.
struct GemmaOptions : DecoderOptions {
  GemmaOptions() {
    tie_embeddings = true;
    activation = "gelu_tanh";
    sliding_window = 4096;
  }
  std::optional<double> query_scalar;  ///< scores are divided by its square root
  double score_softcap = 0.0, logit_softcap = 0.0;

 protected:
  /// Describes the options after the sizes.
  void describe_gemma(config::Fields& fields);
};

/// Sets what every version has: norms whose weights are stored minus 1, and embeddings multiplied
/// by sqrt(hidden_size).
void specialize_gemma(DecoderShape& shape);
/// Sets scales and caps of scores and logits, and norms before and after attention and MLP.
void specialize_gemma(const GemmaOptions& options, DecoderShape& shape);

/// The soft caps for files without these keys; a cap of null means none.
struct GemmaCaps {
  double score = 0.0, logit = 0.0;
};
void read_gemma(const HfConfig& keys, const GemmaCaps& absent, GemmaOptions& out);
void write_gemma(const GemmaOptions& options, json::Value& hf_config);
/// The names of the four norms of a layer in torch's order.
DecoderModules gemma_modules();

/// The names of any version in GGUF files, whose norm weights include the added 1.
GgufNames gemma_gguf_names(std::string architecture, std::string model_type);
/// The same for the versions with four norms per layer and windows: 2 and 3.
GgufNames gemma_gguf_names_with_windows(std::string architecture, std::string model_type);
/// Values that llama.cpp derives and files do not store: windows in layers where `slides` is true,
/// and the scale of scores by the width of a head or, in the 27B model, by hidden_size / heads.
GgufNames::Values derived_gemma_gguf(const json::Value& config,
                                     std::int64_t layers_of_27b,
                                     const LayerRule& slides);

}  // namespace tessera::models

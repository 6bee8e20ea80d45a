// SPDX-License-Identifier: Apache-2.0
// What the versions of Gemma share. Source: Gemma team 2024, "Gemma: open models based on Gemini
// research and technology".
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
  /// What stands behind the sizes.
  void describe_gemma(config::Fields& fields);
};

/// Norms whose weights count from 1, and embeddings times sqrt(hidden_size): of every version.
void specialize_gemma(DecoderShape& shape);
/// Scales and caps of scores and logits, and norms before and after attention and MLP.
void specialize_gemma(const GemmaOptions& options, DecoderShape& shape);

/// The soft caps of files that do not say them; a cap that is null means none.
struct GemmaCaps {
  double score = 0.0, logit = 0.0;
};
void read_gemma(const HfConfig& keys, const GemmaCaps& absent, GemmaOptions& out);
void write_gemma(const GemmaOptions& options, json::Value& hf_config);
/// The names of the four norms of a layer in the order of torch.
DecoderModules gemma_modules();

/// The names of any version in GGUF files, whose norms have 1 added.
GgufNames gemma_gguf_names(std::string architecture, std::string model_type);
/// The same for versions with four norms in a layer, and windows: 2 and 3.
GgufNames gemma_gguf_names_with_windows(std::string architecture, std::string model_type);
/// What llama.cpp computes of these without a word of the file: windows in layers where `slides`,
/// and scores that are scaled by the width of a head, or, in the model of 27B, by hidden_size /
/// heads.
GgufNames::Values derived_gemma_gguf(const json::Value& config,
                                     std::int64_t layers_of_27b,
                                     const LayerRule& slides);

}  // namespace tessera::models

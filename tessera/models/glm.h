// SPDX-License-Identifier: Apache-2.0
// The parts that the versions of GLM have in common: rotary positions on neighbouring channels of
// half of each head, biases of queries, keys and values, and fused gate and up projections in the
// files. Source: GLM team 2024, "ChatGLM: a family of large language models".
#pragma once

#include <vector>

#include "tessera/models/decoder_hf.h"
#include "tessera/models/decoder_options.h"
#include "tessera/models/decoder_weights.h"

namespace tessera::models {

struct GlmOptions : DecoderOptions {
  GlmOptions() {
    attention_bias = true;
    rotary_share = 0.5;
  }

 protected:
  void describe_glm(config::Fields& fields, const std::vector<Preset>& presets);
};
void specialize_glm(DecoderShape& shape);
/// Names, and defaults of absent keys; `has_attention_bias` refers to queries, keys and values.
HfDecoder hf_of_glm(const char* model_type, const char* architecture);
/// Reads the share of a head's channels that are rotated.
void read_glm(const HfConfig& keys, GlmOptions& out);
void write_glm(const GlmOptions& options, json::Value& hf_config);
/// Gate and up projections are rows of one matrix; queries, keys and values are separate tensors.
Composition compose_glm(const ParamInfo& info);
DecoderModules glm_modules();

}  // namespace tessera::models

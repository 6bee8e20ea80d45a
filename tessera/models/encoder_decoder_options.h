// SPDX-License-Identifier: Apache-2.0
// The options, the keys of Hugging Face and the weight map that families of encoder_decoder.h
// share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/encoder_decoder.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"

namespace tessera::models {

/// Named sizes of such a family.
struct EncoderDecoderPreset {
  Preset sizes;
  /// The MLP has a gate of gelu_tanh and the head a weight of its own (version 1.1); else the MLP
  /// has the activation relu, and the head shares the token table.
  bool gated = false;
};

struct EncoderDecoderOptions : FamilyOptions {
  std::optional<std::int64_t> num_decoder_layers, head_dim;
  std::int64_t position_buckets = 32, position_max_distance = 128;
  std::optional<std::string> activation;
  std::optional<bool> gated, tied, scale_output;
  double rms_norm_eps = 1e-6;
  double init_factor = 1.0;
  std::int64_t start_token = 0, pad_token = 0;

 protected:
  void describe_all(config::Fields& fields, const std::vector<EncoderDecoderPreset>& presets);

 private:
  void describe_shape(config::Fields& fields);
};

std::vector<Preset> sizes_of(const std::vector<EncoderDecoderPreset>& presets);
/// The keys that may be given beside `model.from`.
std::vector<Adjustable> adjustable_of_encoder_decoder();

/// Family::resolve of such a family. Without a preset it is as the first one is.
Resolved resolve_encoder_decoder(const std::string& family,
                                 const std::vector<EncoderDecoderPreset>& presets,
                                 const EncoderDecoderOptions& options,
                                 std::int64_t tokenizer_size,
                                 std::optional<std::int64_t> sequence_length,
                                 config::Problems& problems,
                                 const config::Origins& origins);

/// Hugging Face's defaults of absent keys.
struct EncoderDecoderDefaults {
  const char* model_type;
  std::int64_t vocab, hidden, ffn, layers, heads;
  const char* feed_forward;
  bool tied;
};
/// Reads what all these families have. `max_positions` stays open: no weight depends on it. The
/// head is divided and shared as `scale_decoder_outputs` says where a file has it (transformers 5),
/// else as `tie_word_embeddings` does.
void read_encoder_decoder(const HfConfig& keys,
                          const EncoderDecoderDefaults& defaults,
                          EncoderDecoderOptions& out);
/// The reverse, of resolved options.
json::Value encoder_decoder_to_hf(const EncoderDecoderOptions& options,
                                  const char* architecture,
                                  const char* model_type);

/// The composition under Hugging Face's names: queries, keys and values apart, and so the gate.
Composition compose_encoder_decoder(const ParamInfo& info);
/// The weight map of such a family.
WeightMap encoder_decoder_weights();
/// The modules of such a model in the order of torch.
std::vector<std::string> encoder_decoder_modules();

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// The options, Hugging Face keys and weight map that families of encoder_decoder.h share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/encoder_decoder.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"

namespace tessera::models {

/// The name of the output layer's weight in files.
inline constexpr const char* kEncoderDecoderHead = "lm_head.weight";

struct EncoderDecoderOptions : FamilyOptions {
  std::optional<std::int64_t> num_decoder_layers, head_dim;
  std::int64_t position_buckets = 32, position_max_distance = 128;
  std::string activation = "relu";
  bool gated = false;
  bool drops_only_branches = false;  ///< see EncoderDecoderShape; a fact of the family
  std::optional<bool> scale_output;
  double rms_norm_eps = 1e-6;
  double init_factor = 1.0;
  std::int64_t start_token = 0, pad_token = 0;
  /// Adds the experts of a family that has some to a shape whose sizes are set, and reports values
  /// that contradict each other. The sizes of `shape` may be refused ones.
  virtual void add_experts(EncoderDecoderShape& /*shape*/, Checks& /*checks*/) const {}
  /// Sets the values in which the family's own description differs from the options.
  virtual void describe_experts(const EncoderDecoderShape& /*shape*/) {}

 protected:
  void describe_all(config::Fields& fields, const std::vector<Preset>& presets);

 private:
  void describe_shape(config::Fields& fields);
};

/// The name of such a family and its defaults for absent keys of config.json.
struct HfEncoderDecoder {
  std::string model_type;  ///< the family's name
  std::string architecture;
  std::int64_t vocab, hidden, ffn, layers, heads;
  const char* feed_forward;
  bool tied;
  /// Whether transformers 5 scales the head's input if config.json does not say it.
  bool scaled_since_5 = true;
};

/// Family::resolve for such a family.
Resolved resolve_encoder_decoder(const std::string& family,
                                 const std::vector<Preset>& presets,
                                 const EncoderDecoderOptions& options,
                                 std::int64_t tokenizer_size,
                                 std::optional<std::int64_t> sequence_length,
                                 config::Problems& problems,
                                 const config::Origins& origins);
/// Reads a config.json. `max_positions` remains unset, because no weight depends on it.
/// Transformers 5 writes `tie_word_embeddings` true for every model, and `scale_decoder_outputs`
/// says whether the head's input is scaled; without the latter key the former decides both. Whether
/// the head is tied is a guess until settle_head() is called.
void read_encoder_decoder(const json::Value& hf_config,
                          const HfEncoderDecoder& defaults,
                          EncoderDecoderOptions& out);
/// Ties the head or not, as the stored tensors do: `own_head` says that the files have a head that
/// differs from the token table. Returns a warning if `hf_config` says otherwise; else "".
std::string settle_head(const json::Value& hf_config,
                        bool own_head,
                        EncoderDecoderOptions& options);
/// Writes a config.json from resolved options.
json::Value encoder_decoder_to_hf(const EncoderDecoderOptions& options,
                                  const HfEncoderDecoder& names);

/// The composition under Hugging Face's names: queries, keys and values are separate tensors, and
/// so is the gate.
Composition compose_encoder_decoder(const ParamInfo& info);
/// The weight map of such a family.
WeightMap encoder_decoder_weights();
/// The modules of such a model in torch's order.
std::vector<std::string> encoder_decoder_modules();

/// Declares such a family with its own options type; this template adds what all such families
/// share.
template <class Options>
struct EncoderDecoderFamilyOf {
  std::vector<Preset> presets;
  HfEncoderDecoder hf;
  /// Read and write the keys of config.json that the family does not share; may be empty.
  std::function<void(const HfConfig& keys, Options& out)> read = {};
  std::function<void(const Options& options, json::Value& out)> write = {};
  WeightMap weight_map = encoder_decoder_weights();
  std::vector<Adjustable> adjustable = {{"dropout"}, {"init_factor"}, {"label_smoothing"}};

  [[nodiscard]] Family family() const {
    return FamilyOf<Options>{.presets = presets,
                             .adjustable = adjustable,
                             .resolve =
                                 [*this](const Options& options,
                                         std::int64_t tokenizer_size,
                                         std::optional<std::int64_t> sequence_length,
                                         config::Problems& problems,
                                         const config::Origins& origins) {
                                   return resolve_encoder_decoder(hf.model_type,
                                                                  presets,
                                                                  options,
                                                                  tokenizer_size,
                                                                  sequence_length,
                                                                  problems,
                                                                  origins);
                                 },
                             .from_hf =
                                 [hf = hf, read = read](const json::Value& hf_config) {
                                   Options out;
                                   read_encoder_decoder(hf_config, hf, out);
                                   if (read) read(HfConfig(hf_config), out);
                                   return out;
                                 },
                             .to_hf =
                                 [hf = hf, write = write](const Options& options) {
                                   json::Value out = encoder_decoder_to_hf(options, hf);
                                   if (write) write(options, out);
                                   return out;
                                 },
                             .weight_map = weight_map,
                             .objective = "seq2seq"}
        .family();
  }
};

}  // namespace tessera::models

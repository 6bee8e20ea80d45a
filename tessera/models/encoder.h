// SPDX-License-Identifier: Apache-2.0
// The encoder of BERT and similar families: learned positions, bidirectional attention, and a norm
// after the embedding and after each branch of a layer, or before each branch and after the last
// layer. Families define names and a shape;
// objectives define heads. Source: Devlin et al. 2019, "BERT".
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/sizes.h"
#include "tessera/models/trunk.h"

namespace tessera::models {

/// Names of an encoder's modules, without the base prefix of the family's files.
struct EncoderNames {
  std::string words, positions;  ///< tables: "embeddings.word_embeddings"
  std::string types;             ///< table of token types; empty: none
  std::string embedding_norm;
  std::string layers;  ///< of the blocks: "encoder.layer" for "encoder.layer.3"
  /// Modules of a layer.
  std::string qkv, attention_output, attention_norm, ffn_input, ffn_output, ffn_norm;
  std::string final_norm = {};  ///< after the last layer, with EncoderShape::pre_norm
};

/// The complete shape of an encoder.
struct EncoderShape : Sizes {
  std::int64_t type_vocab_size = 2;
  /// If set, positions count only the tokens that are not padding, starting at the padding id + 1;
  /// if absent, every token has a position, starting at 0.
  std::optional<std::int64_t> counted_pad;
  std::string activation = "gelu";
  double dropout = 0.0, attention_dropout = 0.0;
  /// `dropout` also acts on the output of attention; only DistilBERT has none there.
  bool drops_attention_output = true;
  double layer_norm_eps = 1e-12, init_std = 0.02;
  bool tie_embeddings = true;
  /// Norms come before the branches of a layer and after the last layer; false: after the embedding
  /// and after each branch.
  bool pre_norm = false;
  /// Rows of the table of positions.
  [[nodiscard]] std::int64_t position_rows() const {
    return max_positions + (counted_pad ? *counted_pad + 1 : 0);
  }
};

/// The blocks "embeddings" and `layers`.0, `layers`.1, ... The fused projection of a layer is [3,
/// heads, head_dim, embed]. Reads "input_ids" and, if the batch has them, "attention_mask" and
/// "token_type_ids" (absent: type 0).
Trunk encoder_trunk(const EncoderShape& shape, const EncoderNames& names, HeadSpecs heads);

/// The keys of the section `model` that encoders share.
struct EncoderOptions : FamilyOptions {
  std::int64_t type_vocab_size = 2;
  std::optional<double> attention_dropout, classifier_dropout;
  std::string activation = "gelu";
  double layer_norm_eps = 1e-12;

 protected:
  /// Documentation texts that differ between families.
  struct EncoderTexts {
    std::vector<Preset> presets;
    std::string preset_default, positions_default;
    bool types = true;  ///< the key type_vocab_size exists
    std::string dropout_places = "after the embedding and on the outputs of attention and MLP";
  };
  void describe_encoder(config::Fields& fields, const EncoderTexts& texts);
};

/// The family-specific inputs of the shared Family::resolve.
struct EncoderFamily {
  std::string name;
  const std::vector<Preset>& presets;
  EncoderNames names;
  std::optional<std::int64_t> counted_pad = {};  ///< see EncoderShape
  bool pre_norm = false;                         ///< see EncoderShape
  bool drops_attention_output = true;            ///< see EncoderShape
  HeadSpecs heads = {};
};
/// Family::resolve for an encoder. `described`: the given options, which this completes.
Resolved resolve_encoder(const EncoderOptions& options,
                         const EncoderFamily& family,
                         std::int64_t tokenizer_size,
                         std::optional<std::int64_t> sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins);

/// Declares an encoder family with its own options type.
template <class Options>
struct EncoderFamilyOf {
  std::string name;
  std::vector<Preset> presets;
  EncoderNames names;
  HeadSpecs (*heads)(const Options& options) = nullptr;
  /// EncoderShape::counted_pad; nullptr: every token has a position.
  std::int64_t (*counted_pad)(const Options& options) = nullptr;
  bool pre_norm = false;               ///< see EncoderShape
  bool drops_attention_output = true;  ///< see EncoderShape
  std::function<Options(const json::Value& hf_config)> from_hf;
  std::function<json::Value(const Options& options)> to_hf;
  WeightMap weight_map;

  [[nodiscard]] Family family() const {
    return FamilyOf<Options>{
        .presets = presets,
        .adjustable = {{"dropout", {"attention_dropout", "classifier_dropout"}},
                       {"attention_dropout"},
                       {"classifier_dropout"},
                       {"init_std"},
                       {"label_smoothing"}},
        .resolve =
            [*this](const Options& options,
                    std::int64_t tokenizer_size,
                    std::optional<std::int64_t> sequence_length,
                    config::Problems& problems,
                    const config::Origins& origins) {
              EncoderFamily whole = {.name = name,
                                     .presets = presets,
                                     .names = names,
                                     .pre_norm = pre_norm,
                                     .drops_attention_output = drops_attention_output,
                                     .heads = heads(options)};
              if (counted_pad != nullptr) whole.counted_pad = counted_pad(options);
              return resolve_encoder(
                  options, whole, tokenizer_size, sequence_length, problems, origins);
            },
        .from_hf = from_hf,
        .to_hf = to_hf,
        .weight_map = weight_map,
        .objective = "masked_lm"}
        .family();
  }
};

/// Reads the keys of config.json that BERT and RoBERTa share, with the defaults of transformers.
/// Refuses decoders, relative positions, pruned heads and quantized weights.
void encoder_from_hf(const HfConfig& keys, EncoderOptions& out);
/// Writes these keys; `architecture` is the one for masked language modelling.
json::Value encoder_to_hf(const EncoderOptions& options,
                          const char* architecture,
                          const char* model_type);

/// The keys of config.json that describe the size of such an encoder, from facts with tessera's
/// names (vocab_size, hidden_size, ffn_hidden_size, num_layers, num_heads, max_positions,
/// type_vocab_size, activation in Hugging Face's words, norm_eps, tie_embeddings).
json::Value encoder_config_of(const json::Value& facts);

/// The names under which a family's files store an encoder.
struct StoredNames {
  std::string base;                       ///< "bert."
  std::vector<std::string> outside;       ///< beginnings of names without the base
  std::string fused;                      ///< the fused projection in tessera: ".qkv."
  std::array<std::string, 3> apart = {};  ///< its parts in the files: ".query.", ".key.", ".value."
};
Composition compose_encoder(const ParamInfo& info, const StoredNames& names);

}  // namespace tessera::models

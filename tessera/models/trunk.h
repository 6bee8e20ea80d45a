// SPDX-License-Identifier: Apache-2.0
// The trunk of a model: its blocks from the input to the last hidden states, without the final
// norm, the head and the loss. A family makes the trunk; an objective (models/objective.h)
// completes it, so every family works with every objective.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/models/norm.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// Tags of parameters with global names, without the prefix of the block that declares them.
inline constexpr nn::Params::Tags kGlobalName = {.without_prefix = true};

/// The table of token embeddings, which a language-model head shares if the two are tied.
struct VocabularyTable {
  std::string name;  ///< global name of the parameter: "wte.weight"
  std::int64_t vocab_size = 0;
  bool tied = false;
  bool head_bias = false;  ///< a head that continues text has a bias, "lm_head.bias"
};

/// The hidden state of a sample that a head reads.
enum class Pooling : std::uint8_t {
  LastToken,   ///< of the last token that is not padding
  FirstToken,  ///< of the first token
  Mean         ///< the mean over the tokens that are not padding
};

/// The shape and the names of a head in a family: an output layer, and optionally a dense layer
/// with an activation and a norm before it. Names are those of Hugging Face's checkpoints; the
/// defaults describe the head of a decoder.
struct HeadSpec {
  std::string dense;  ///< module of the dense layer; empty: the head consists of the output layer
  bool dense_bias = true;
  float output_std = 0.0F;  ///< of the output layer's initial weights; 0: the trunk's
  /// Activation of the dense layer: "tanh", or one of ops::activation_names().
  std::string activation = "tanh";
  NormSpec norm = {.kind = NormKind::None};  ///< after the activation
  std::string norm_name;
  double input_dropout = 0.0;    ///< before the dense layer
  double dropout = 0.0;          ///< before the output layer
  std::string output = "score";  ///< module of the output layer: its weight is "score.weight"
  std::string output_bias;       ///< name of its bias; empty: none
};

/// The heads that a family has.
struct HeadSpecs {
  HeadSpec sample;                       ///< for objectives that classify whole samples
  Pooling pooling = Pooling::LastToken;  ///< the input of the head for whole samples
  float dense_std = 0.0F;                ///< of the dense layers' initial weights; 0: the trunk's
  std::optional<HeadSpec> token;         ///< for objectives that classify each token
  /// Its output layer is the token table if the two are tied.
  std::optional<HeadSpec> masked_lm;
  /// The head of next sentence prediction or sentence order prediction, which reads the first
  /// token.
  std::optional<HeadSpec> pair = {};
};

/// The ids with which the decoder of an encoder-decoder model begins and ends its sequence. Batches
/// have what the encoder reads under the name of its modality (input_of()), with "attention_mask"
/// [B, S], 0 at padding, if that is a sequence of tokens, and the decoder's sequence as
/// "decoder_input_ids" [B, T], or only as "labels" [B, T]; then the decoder reads `start_token` and
/// all labels but the last, with `pad_token` in place of -100.
struct TargetText {
  std::int64_t start_token = 0, pad_token = 0;
  double dropout = 0.0;  ///< dropout of the last hidden states
};

/// The tokens [B, T] that the decoder reads: "decoder_input_ids", or derived from "labels". If
/// ranks share the tokens, this rank's.
at::Tensor decoder_input(const nn::Batch& batch,
                         const TargetText& target,
                         const nn::StepContext& context);

/// The kind of samples that a model reads.
enum class Modality : std::uint8_t { Text, Images };

/// The tensor of a batch that a model of this modality reads: "input_ids" [B, T] for text,
/// "pixel_values" [B, channels, height, width] for images.
constexpr const char* input_of(Modality modality) {
  return modality == Modality::Images ? "pixel_values" : "input_ids";
}

/// The properties of a trunk that the objective completing it must know.
struct TrunkOutput {
  std::int64_t hidden_size = 0;
  NormSpec norm;          ///< the final norm, which the objective's block declares and applies
  std::string norm_name;  ///< global name of its parameters: "ln_f"
  VocabularyTable vocabulary;
  double init_std = 0.02;              ///< standard deviation of the initial weights
  double logit_softcap = 0.0;          ///< logits become cap * tanh(logits / cap); 0: none
  double state_factor = 1.0;           ///< factor of the last hidden states, before a text's head
  bool causal = true;                  ///< a token's hidden state depends on no later token
  Modality modality = Modality::Text;  ///< what the first block reads; of two parts, the encoder's
  float init_cutoff = 0.0F;  ///< see Init::truncated(); 0: initial weights are not truncated
  HeadSpecs heads = {};
  std::optional<TargetText> target = {};  ///< only for an encoder with a decoder
  /// Initial weights of standard deviation `std`; 0: init_std.
  [[nodiscard]] Init init(double std = 0.0) const {
    const double chosen = std > 0 ? std : init_std;
    return init_cutoff > 0 ? Init::truncated(chosen, init_cutoff) : Init::normal(chosen);
  }
};

struct Trunk {
  std::vector<nn::BlockSpec> blocks;  ///< embedding and layers, in order
  TrunkOutput output;
};

/// Declares the table [vocab_size, hidden_size] in the block of the embedding, or in a head that
/// shares it.
Param* declare_table(nn::Params& params, const TrunkOutput& trunk);
/// Declares the weight [vocab_size, hidden_size] of a language-model head: the table if it is tied,
/// else "lm_head.weight".
Param* declare_vocabulary_head(nn::Params& params, const TrunkOutput& trunk);
/// Declares the bias [vocab_size] of this head; nullptr if it has none.
Param* declare_vocabulary_bias(nn::Params& params, const TrunkOutput& trunk);

}  // namespace tessera::models

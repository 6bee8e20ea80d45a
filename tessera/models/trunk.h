// SPDX-License-Identifier: Apache-2.0
// The trunk of a model: its blocks from the input to the last hidden states, without the final
// norm, the head and the loss. A family makes the trunk; an objective (models/objective.h)
// completes it, so that every family works with every objective.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/models/norm.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// Parameters whose names are global and get no prefix of the block that declares them.
inline constexpr nn::Params::Tags kGlobalName = {.without_prefix = true};

/// The table of token embeddings, which a language-model head shares where the two are tied.
struct VocabularyTable {
  std::string name;  ///< of the parameter, global: "wte.weight"
  std::int64_t vocab_size = 0;
  bool tied = false;
};

/// The hidden state of a sample that a head reads.
enum class Pooling : std::uint8_t {
  LastToken,   ///< of the last token that is not padding
  FirstToken,  ///< of the first token
  Mean         ///< the mean over the tokens that are not padding
};

/// The shape and the names of a head in a family: an output layer, and possibly a dense layer with
/// an activation and a norm before it. Names are those of Hugging Face's checkpoints; a family that
/// changes nothing has the head of a decoder.
struct HeadSpec {
  std::string dense;  ///< module of the dense layer; empty: the head is the output layer alone
  bool dense_bias = true;
  std::string activation = "tanh";  ///< of the dense layer: "tanh", or of ops::activation_names()
  NormSpec norm = {.kind = NormKind::None};  ///< behind the activation
  std::string norm_name;
  double input_dropout = 0.0;    ///< before the dense layer
  double dropout = 0.0;          ///< before the output layer
  std::string output = "score";  ///< module of the output layer: its weight is "score.weight"
  std::string output_bias;       ///< name of its bias; empty: none
};

/// The heads that a family has.
struct HeadSpecs {
  HeadSpec sample;                       ///< of objectives that classify whole samples
  Pooling pooling = Pooling::LastToken;  ///< what the head of whole samples reads
  std::optional<HeadSpec> token;         ///< of objectives that classify each token
  std::optional<HeadSpec> masked_lm;     ///< its output is the token table where the two are tied
};

/// How a decoder whose text answers another one, which an encoder reads, begins and ends. Its
/// batches have the other text as "input_ids" [B, S] and "attention_mask" [B, S], 0 at padding, and
/// its own as "decoder_input_ids" [B, T], or as "labels" [B, T], of which they follow:
/// `start_token`, then the labels but for the last one, with `pad_token` in place of -100.
struct TargetText {
  std::int64_t start_token = 0, pad_token = 0;
  double scale = 1.0;    ///< of the last hidden states, before the head
  double dropout = 0.0;  ///< of the last hidden states
};

/// The tokens [B, T] that the decoder reads: "decoder_input_ids", or what follows from "labels". Of
/// this rank where ranks share the tokens.
at::Tensor decoder_input(const nn::Batch& batch,
                         const TargetText& target,
                         const nn::StepContext& context);

/// What an objective has to know of the trunk that it completes.
struct TrunkOutput {
  std::int64_t hidden_size = 0;
  NormSpec norm;          ///< the final norm, which the objective's block declares and applies
  std::string norm_name;  ///< of its parameters, global: "ln_f"
  VocabularyTable vocabulary;
  double init_std = 0.02;      ///< standard deviation of first weights
  double logit_softcap = 0.0;  ///< logits become cap * tanh(logits / cap); 0: none
  bool causal = true;          ///< a token's hidden state depends on no later token
  bool images = false;         ///< its samples are images: a batch has "pixel_values" and no tokens
  HeadSpecs heads = {};
  std::optional<TargetText> target = {};  ///< of an encoder with a decoder
};

struct Trunk {
  std::vector<nn::BlockSpec> blocks;  ///< embedding and layers, in order
  TrunkOutput output;
};

/// Declares the table [vocab_size, hidden_size] in the block of the embedding, or in a head that
/// shares it.
Param* declare_table(nn::Params& params, const TrunkOutput& trunk);
/// Declares the weight [vocab_size, hidden_size] of a language-model head: the table where it is
/// tied, else "lm_head.weight".
Param* declare_vocabulary_head(nn::Params& params, const TrunkOutput& trunk);

}  // namespace tessera::models

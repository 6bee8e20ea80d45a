// SPDX-License-Identifier: Apache-2.0
// Names under which Hugging Face stores a GPT, for readers of other programs' checkpoints. The
// family declares them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/json.h"

namespace tessera::models {

/// Hugging Face's names for a GPT: a decoder with learned positions, norms before attention and
/// MLP, biases, and one projection for queries, keys and values in this order. A layer's matrix is
/// stored as [in, out]. Norms and projections have a ".weight" and a ".bias".
struct GptNames {
  std::string architecture, model_type;  ///< of config.json
  std::string table, positions;          ///< weights: the token table and the table of positions
  std::string layers;                    ///< prefix before a layer's number
  std::string attention_norm, attention_input, attention_output;  ///< modules of a layer
  std::string mlp_norm, mlp_input, mlp_output;
  std::string final_norm;  ///< a module
  std::string head;        ///< a weight
  /// A fact that a reader knows, and its key in config.json.
  std::vector<std::pair<std::string, std::string>> config;

  /// The name of a layer's module: "transformer.h.3.attn.c_attn".
  [[nodiscard]] std::string in_layer(std::int64_t layer, std::string_view module) const;
  /// The config.json for the facts, in their order: num_layers, hidden_size, num_heads,
  /// ffn_hidden_size, vocab_size, max_positions, activation (Hugging Face's name), norm_eps,
  /// tie_embeddings. Other facts are already keys of config.json.
  [[nodiscard]] json::Value config_of(const json::Value& facts) const;
};

/// Filled by the model families.
Registry<GptNames>& gpt_names();
/// The names of the family as which a GPT is read. Throws Error{Unsupported} with `what` if none is
/// implemented.
const GptNames& names_of_gpt(const std::string& what);
#define TESSERA_GPT_NAMES(family, ...)                   \
  static const bool TESSERA_UNIQUE(tessera_gpt_names_) = \
      ::tessera::models::gpt_names().add(family, __VA_ARGS__)

}  // namespace tessera::models

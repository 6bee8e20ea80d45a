// SPDX-License-Identifier: Apache-2.0
// Names under which GGUF files store a family of models: what the reader and the writer of that
// format need to know of it. The family declares them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/json.h"

namespace tessera::models {

/// A family's names in GGUF files and under Hugging Face. "*" stands for the number of a layer.
struct GgufNames {
  /// A number of the file: its key behind the architecture ("block_count") and its key in
  /// config.json; empty: Hugging Face has no key, because it follows from others. A key that is not
  /// required has Hugging Face's default where it is absent.
  struct Key {
    std::string gguf, config;
    bool real = false, required = true;
  };

  using Values = std::vector<std::pair<std::string, json::Value>>;

  std::string architecture, model_type;  ///< of config.json
  std::vector<Key> keys;
  /// What the architecture computes without saying so: key and value of config.json.
  Values implied;
  /// A tensor of the file whose presence switches a flag of config.json on: {"blk.0.attn_q.bias",
  /// "attention_bias"}.
  std::vector<std::pair<std::string, std::string>> flags;
  /// A module of the file and Hugging Face's; each has a ".weight" and possibly a ".bias".
  std::vector<std::pair<std::string, std::string>> modules;
  /// Modules of the file whose matrices Hugging Face stores as [in, out].
  std::vector<std::string> transposed;
  /// Modules of the file whose rows are ordered for rotary positions that turn neighbours, where
  /// Hugging Face turns halves of a head, each with the key that counts its heads.
  std::vector<std::pair<std::string, std::string>> rotated;
  bool rotary = false;         ///< whether the model has rotary positions
  std::string tie = "output";  ///< module of the head, absent where it is the token table
  /// Modules of the file whose vectors are Hugging Face's plus 1.
  std::vector<std::string> raised = {};
  /// Modules of the file whose rows are [query | key | value][head][channel], where Hugging Face's
  /// are [head][query | key | value][channel].
  std::vector<std::string> by_part = {};
  /// Key of config.json for the share of a head's channels that turn; empty: all turn.
  std::string rotary_share = {};
  /// A flag of the file and its key in config.json.
  std::vector<std::pair<std::string, std::string>> switches = {};
  /// What the architecture computes without saying so, where that follows from other keys of
  /// config.json; as `implied`.
  Values (*derived)(const json::Value& config) = nullptr;
  /// The architecture that files have for it, where that is another family's, as which the files
  /// are then read; empty: the name under which it is registered.
  std::string stored_as = {};

  /// Hugging Face's name of a tensor of the file, and the reverse; nothing for other names.
  [[nodiscard]] std::optional<std::string> to_config_name(std::string_view gguf) const;
  [[nodiscard]] std::optional<std::string> to_gguf_name(std::string_view theirs) const;
};

/// Whether `name` is a tensor of `module`, which may have a "*": "blk.3.attn_q.weight" is one of
/// "blk.*.attn_q".
bool is_of_module(std::string_view name, std::string_view module);

/// The names of a decoder with rotary positions, RMS norms and a gated MLP under the names that
/// most of Hugging Face's families share; attention and MLP without biases.
GgufNames rotary_decoder_names(std::string architecture, std::string model_type);
/// Changes such names: a key becomes required, a module gets a name or is not there.
void require_key(GgufNames& names, std::string_view gguf);
void set_module(GgufNames& names, std::string_view gguf, std::string theirs);
void remove_module(GgufNames& names, std::string_view gguf);

/// Filled by the families of models, by `general.architecture` of the files.
Registry<GgufNames>& gguf_names();
/// Architectures of the files that are read.
std::vector<std::string> gguf_architectures();
#define TESSERA_GGUF_NAMES(architecture, ...)       \
  static const bool tessera_gguf_names_registered = \
      ::tessera::models::gguf_names().add(architecture, __VA_ARGS__)

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// Names under which GGUF files store a family of models, for the reader and the writer of that
// format. The family declares them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/json.h"

namespace tessera::models {

/// The key of the attention window.
inline constexpr const char* kGgufWindow = "attention.sliding_window";

/// A family's names in GGUF files and in Hugging Face. "*" stands for a layer's number.
struct GgufNames {
  /// A number in the file: its key without the architecture prefix ("block_count") and its key in
  /// config.json ("attn_config.kv_n_heads" for a key of a section); the latter is empty if Hugging
  /// Face has no key because the value follows from others. A key that is not required has Hugging
  /// Face's default if absent.
  struct Key {
    std::string gguf, config;
    bool real = false, required = true;
    /// The value for config.json if the file has none, where it is not Hugging Face's default.
    std::optional<json::Value> otherwise = {};
  };

  using Values = std::vector<std::pair<std::string, json::Value>>;

  std::string architecture, model_type;  ///< of config.json
  std::vector<Key> keys;
  /// The settings that the architecture implies without storing them: keys and values of
  /// config.json.
  Values implied;
  /// Tensors of the file whose presence sets a flag of config.json: {"blk.0.attn_q.bias",
  /// "attention_bias"}.
  std::vector<std::pair<std::string, std::string>> flags;
  /// Modules of the file and Hugging Face's; each has a ".weight" and optionally a ".bias".
  std::vector<std::pair<std::string, std::string>> modules;
  /// Modules of the file whose matrices Hugging Face stores as [in, out].
  std::vector<std::string> transposed;
  /// Modules of the file whose rows are ordered for rotary positions on neighbouring channels,
  /// while Hugging Face rotates the halves of a head; each with the key of its number of heads.
  std::vector<std::pair<std::string, std::string>> rotated;
  bool rotary = false;  ///< the model has rotary positions
  /// Module of the head, absent if the head is the token table; empty: files have no head.
  std::string tie = "output";
  /// Modules of the file whose vectors equal Hugging Face's plus 1.
  std::vector<std::string> raised = {};
  /// Modules of the file whose rows are [query | key | value][head][channel], while Hugging Face's
  /// are [head][query | key | value][channel].
  std::vector<std::string> by_part = {};
  /// Key of config.json for the share of a head's channels that are rotated; empty: all channels.
  std::string rotary_share = {};
  /// Flags of the file and their keys in config.json.
  std::vector<std::pair<std::string, std::string>> switches = {};
  /// Flags of the file that have one value in this architecture.
  std::vector<std::pair<std::string, bool>> fixed_flags = {};
  /// A table whose number of rows is a key of config.json, and the file's whole key for it.
  struct Rows {
    std::string tensor, config, gguf;
  };
  std::vector<Rows> rows = {};
  /// Keys that do not change the outputs of the layers.
  std::vector<std::string> unread = {};
  /// As `implied`, for values that depend on other keys of config.json.
  Values (*derived)(const json::Value& config) = nullptr;
  /// Modules of the file whose tensors hold those of all experts of a layer, [experts, ...], and
  /// Hugging Face's module of one expert, with "#" for its number: {"blk.*.ffn_up_exps",
  /// "model.layers.*.mlp.experts.#.up_proj"}.
  std::vector<std::pair<std::string, std::string>> stacked = {};
  /// Modules of the file that hold a vector, which Hugging Face stores as a matrix of one row.
  std::vector<std::string> rows_of_one = {};
  /// The architecture name in files, if the family is stored as another family, as which the files
  /// are then read; empty: the name under which the family is registered.
  std::string stored_as = {};
  /// The number of expert_gating_func (1 if absent) of the family's files, if several families are
  /// stored under one name.
  std::optional<std::int64_t> gating = {};
  /// Whole names of tensors of the file and Hugging Face's, if only one of them ends with ".weight"
  /// or ".bias".
  std::vector<std::pair<std::string, std::string>> exact = {};

  /// The rows of Hugging Face's matrix of one expert or head in each tensor of the file.
  enum class PartRows : std::uint8_t {
    Halves,  ///< as many consecutive rows in each; of one tensor: all
    Turns,   ///< row i is in tensor i % number of tensors
    OfHead,  ///< as many as `sizes` says; the matrices of the first tensor are transposed
  };
  /// A tensor of Hugging Face with a matrix (or vector) of each expert or head, which the file
  /// holds in tensors [experts, rows, columns] (or [experts, rows]). Names are whole.
  struct Parts {
    std::string theirs;
    std::vector<std::string> files;
    PartRows rows = PartRows::Halves;
    bool transposed = false;  ///< Hugging Face's matrices are [columns, rows]
    bool flat = false;        ///< Hugging Face's tensor has two dims, the first over all matrices
    std::string count = "expert_count";  ///< key of the number of matrices
    std::vector<std::int64_t> (*sizes)(const json::Value& config) = nullptr;
  };
  std::vector<Parts> parts = {};

  /// Numbers of the file that follow from several keys of config.json.
  using Counts = std::vector<std::pair<std::string, std::int64_t>>;
  Counts (*counts)(const json::Value& config) = nullptr;
  /// The reverse. `count` returns a number of the file; it throws Error{Format} for an absent one
  /// unless it may be 0, which then stands for it.
  using Count = std::function<std::int64_t(const std::string& key, bool may_be_absent)>;
  Values (*from_counts)(const Count& count) = nullptr;
  /// Numbers of the file that have one value in this architecture, if they are present.
  Counts constants = {};
  std::vector<std::pair<std::string, double>> real_constants = {};

  /// Rotary scaling "yarn", if the architecture has it.
  struct Yarn {
    bool truncate = true;  ///< of config.json: files do not say it
    /// mscale and mscale_all_dim are one number, a tenth of which is yarn_log_multiplier. Else
    /// sines and cosines have the factor 0.1 ln(factor) + 1.
    bool log_multiplier = false;
  };
  std::optional<Yarn> yarn = {};
  /// Programs read the factors of rotary scaling "llama3" from files of the architecture.
  bool rotary_factors = false;
  /// Rotary scaling "longrope", with its two lists of factors, if the architecture has it.
  struct LongRope {
    /// config.json has the factor of sines and cosines as short_mscale and long_mscale, which must
    /// be equal; else as attention_factor, or as the default of longrope.
    bool mscale = false;
  };
  std::optional<LongRope> long_rope = {};
  /// Key of config.json for the rotated channels of a head with latent attention; empty: heads of
  /// other attention.
  std::string rotary_channels = {};

  /// Hugging Face's name of a tensor of the file, and the reverse; nothing for other names.
  [[nodiscard]] std::optional<std::string> to_config_name(std::string_view gguf) const;
  [[nodiscard]] std::optional<std::string> to_gguf_name(std::string_view theirs) const;
  /// Hugging Face's name of expert `expert` in a tensor of `stacked`; nothing for other names.
  [[nodiscard]] std::optional<std::string> expert_to_config_name(std::string_view gguf,
                                                                 std::int64_t expert) const;
  /// The reverse: the tensor of the file, and the number of the expert.
  struct ExpertTensor {
    std::string name;
    std::int64_t expert = 0;
  };
  [[nodiscard]] std::optional<ExpertTensor> expert_to_gguf_name(std::string_view theirs) const;
  /// Of a tensor of the file that is one of `parts`: which it is, and Hugging Face's name.
  struct Part {
    const Parts* parts = nullptr;
    std::size_t index = 0;
    std::string theirs;
  };
  [[nodiscard]] std::optional<Part> part_of(std::string_view gguf) const;
  /// The reverse: the names of all parts.
  struct InParts {
    const Parts* parts = nullptr;
    std::vector<std::string> files;
  };
  [[nodiscard]] std::optional<InParts> in_parts(std::string_view theirs) const;
};

/// True if `name` is a tensor of `module`, which may contain a "*": "blk.3.attn_q.weight" belongs
/// to "blk.*.attn_q".
bool is_of_module(std::string_view name, std::string_view module);

/// The names of a decoder with rotary positions, RMS norms, a gated MLP and no biases, with the
/// Hugging Face names that most families share.
GgufNames rotary_decoder_names(std::string architecture, std::string model_type);
/// Changes to such names: makes a key required, or renames or removes a module.
void require_key(GgufNames& names, std::string_view gguf);
void set_module(GgufNames& names, std::string_view gguf, std::string theirs);
void remove_module(GgufNames& names, std::string_view gguf);
/// Removes the three projections of the MLP of a family all of whose layers have experts.
void remove_dense_modules(GgufNames& names);
/// Adds the experts of every layer: the router, and stacked projections of the modules `experts`.#.
/// `layer` is Hugging Face's module of a layer's experts: "model.layers.*.mlp".
struct GgufExperts {
  std::string router, experts, gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string count_key = "num_experts";
};
void add_experts(GgufNames& names, const GgufExperts& experts);

/// Filled by the model families; the key is `general.architecture` of the files.
Registry<GgufNames>& gguf_names();
/// The architectures that can be read.
std::vector<std::string> gguf_architectures();
#define TESSERA_GGUF_NAMES(architecture, ...)             \
  static const bool TESSERA_UNIQUE(tessera_gguf_names_) = \
      ::tessera::models::gguf_names().add(architecture, __VA_ARGS__)

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
// Reads a Megatron-LM checkpoint and joins the files of the ranks, including the optimizer's state.
// Classes derived from Reader define the layers of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/megatron/part.h"

namespace tessera::interop::megatron {

using Shape = std::vector<std::int64_t>;
/// The names of a module in the generations of Megatron.
using Candidates = std::initializer_list<const char*>;

// The names in megatron.core, without and with norms fused into the projection after them, and in
// earlier generations.
inline constexpr Candidates kTokens = {"embedding.word_embeddings.weight",
                                       "language_model.embedding.word_embeddings.weight"};
inline constexpr Candidates kPositions = {"embedding.position_embeddings.weight",
                                          "language_model.embedding.position_embeddings.weight"};
inline constexpr Candidates kLayers = {
    "decoder.layers.", "language_model.encoder.layers.", "language_model.transformer.layers."};
inline constexpr Candidates kAttentionNorm = {
    "input_layernorm.", "self_attention.linear_qkv.layer_norm_", "input_norm."};
inline constexpr Candidates kQkv = {
    "self_attention.linear_qkv.", "self_attention.query_key_value.", "attention.query_key_value."};
inline constexpr Candidates kProjection = {
    "self_attention.linear_proj.", "self_attention.dense.", "attention.dense."};
inline constexpr Candidates kMlpNorm = {"pre_mlp_layernorm.",
                                        "mlp.linear_fc1.layer_norm_",
                                        "post_attention_layernorm.",
                                        "post_attention_norm."};
inline constexpr Candidates kFc1 = {"mlp.linear_fc1.", "mlp.dense_h_to_4h."};
inline constexpr Candidates kFc2 = {"mlp.linear_fc2.", "mlp.dense_4h_to_h."};
inline constexpr Candidates kFinalNorm = {"decoder.final_layernorm.",
                                          "language_model.encoder.final_layernorm.",
                                          "language_model.encoder.final_norm.",
                                          "language_model.transformer.final_layernorm."};
inline constexpr Candidates kHead = {
    "output_layer.weight", "language_model.output_layer.weight", "lm_head.output_layer.weight"};

/// Returns the candidate name that exists after the prefix `before`, or the first candidate if none
/// does, for use in the error message.
std::string named(const Named& tensors,
                  const std::string& before,
                  Candidates names,
                  const char* after = "");

/// A virtual stage of the pipeline: model chunk `chunk` of pipeline rank `rank`.
struct StageOf {
  int rank = 0;
  std::size_t chunk = 0;
};

/// A stack of layers: the names before a layer's number in the generations of Megatron, and the
/// number of layers.
struct Stack {
  Candidates roots;
  std::int64_t layers = 0;
};
/// A layer by its stack and its number in it.
struct LayerOf {
  std::size_t stack = 0;
  std::int64_t number = 0;
};

/// The kind of model in a checkpoint, which the names of its tensors determine.
enum class ModelKind : std::uint8_t {
  Decoder,        ///< GPTModel
  Encoder,        ///< BertModel
  EncoderDecoder  ///< T5Model
};

/// The whole checkpoint.
class Reader {
 public:
  /// Reads the files' tables of contents. Throws Error{Format} for a missing or damaged file.
  explicit Reader(std::filesystem::path path);
  virtual ~Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Foreign read();
  [[nodiscard]] ModelKind kind() const;
  /// True if a flag of Megatron's arguments is set.
  [[nodiscard]] bool flag(const char* key) const;
  /// True if an argument is text other than `word`.
  [[nodiscard]] bool is_another(const char* key, const char* word) const;

 protected:
  /// Sets the sizes below. Throws Error{Unsupported} for models that the class cannot read.
  virtual void read_sizes() = 0;
  /// Hugging Face's names of the token table and of an untied head.
  [[nodiscard]] virtual std::string table_name() const = 0;
  [[nodiscard]] virtual std::string head_name() const = 0;
  /// Adds the tensors of the first stage besides the token table.
  virtual void add_first(StageOf /*at*/) {}
  /// The stacks of layers, in the order of the forward pass.
  [[nodiscard]] virtual std::vector<Stack> stacks() const { return {{kLayers, layers_}}; }
  /// Adds a layer. `theirs`: Megatron's prefix of its modules.
  virtual void add_layer(StageOf at, const std::string& theirs, const LayerOf& layer) = 0;
  /// Adds the tensors of the last stage besides the head.
  virtual void add_last(StageOf at) = 0;
  /// Hugging Face's config.json.
  [[nodiscard]] virtual json::Value model_config() const = 0;
  /// The reason why the optimizer's state does not fit the model that is read; empty if it does.
  [[nodiscard]] virtual std::string state_obstacle() const { return ""; }

  [[nodiscard]] const Part& first() const { return parts_.at({0, 0}); }
  /// The tensors of a stage as the model computes with them, on the first tensor-parallel rank.
  [[nodiscard]] const Named& weights(StageOf at) const;
  /// An argument of Megatron's command line; nullptr if the file does not have it.
  [[nodiscard]] const json::Value* argument(const char* key) const;
  /// 0 if the argument is absent.
  [[nodiscard]] std::int64_t integer_argument(const char* key) const;
  [[nodiscard]] bool has_number(const char* key) const;
  /// A size. Throws Error{Format} unless it is a positive number below 2^31.
  [[nodiscard]] std::int64_t size(const char* key) const;
  /// A real number, or `absent`.
  [[nodiscard]] double number(const char* key, double absent) const {
    return has_number(key) ? argument(key)->as_double() : absent;
  }
  /// Throws Error{Unsupported} with `what` if `bad`.
  void refuse(bool bad, const std::string& what) const;
  /// Sets the sizes of a model with learned positions, layer norms, biases and an MLP of two
  /// projections. Throws Error{Unsupported} if an argument says that it is another one.
  void read_learned_sizes();
  /// Hugging Face's name of the activation of such a model.
  [[nodiscard]] const char* learned_activation() const;
  /// The virtual stages in the order of the forward pass.
  [[nodiscard]] std::vector<StageOf> stages() const;

  /// Adds a tensor that every tensor-parallel rank has.
  void replicated(StageOf at,
                  const std::string& theirs,
                  const std::string& name,
                  const Shape& shape);
  /// Adds a tensor of which ranks hold slices along `dim` of `shape`; `view` converts each rank's
  /// tensor [`local`] to its part of the tensor in Hugging Face's file, whose shape is `to`.
  template <class View>
  void joined(StageOf at,
              const std::string& theirs,
              const std::string& name,
              const Shape& local,
              const Shape& shape,
              std::size_t dim,
              const Shape& to,
              View view) {
    std::vector<Weight> parts;
    for (int t = 0; t < tensor_; ++t)
      parts.push_back(view(tensor(t, at, theirs, local)));
    made_.push_back(concatenate(name, shape, dim, std::move(parts), to, path_.string()));
  }

  /// Adds a row [width] per token, or a number, without the padding of the vocabulary.
  void add_rows_of_vocabulary(StageOf at,
                              Candidates theirs,
                              const std::string& name,
                              bool numbers = false);
  /// Adds a tensor of zeros.
  void add_zeros(const std::string& name, const Shape& shape);

  /// Adds a tensor that consists of the parts of all tensor-parallel ranks along `dim`.
  void add_joined(const std::string& name,
                  const Shape& shape,
                  std::size_t dim,
                  std::vector<Weight> parts);
  /// The tensors, of the kind that is being read, of a stage on a rank that holds experts.
  [[nodiscard]] const Named& held_by(int t, StageOf at, int expert_rank) const;
  [[nodiscard]] const Weight& expert_tensor(
      int t, StageOf at, int expert_rank, const std::string& name, const Shape& shape) const;

  int tensor_ = 0;        ///< number of tensor-parallel ranks
  int expert_ranks_ = 1;  ///< number of ranks that divide experts
  std::int64_t layers_ = 0, width_ = 0, heads_ = 0, positions_ = 0, inner_ = 0;
  std::int64_t vocab_ = 0;
  bool untied_ = false;

 private:
  void require_part(int t, int p, int e = 0) const;
  void tell_experts_from_stages();
  [[nodiscard]] const Stage& stage(int t, StageOf at) const;
  [[nodiscard]] std::int64_t layers_in(StageOf at, const std::string& root) const;
  void read_layers();
  void read_vocabulary();
  [[nodiscard]] std::string vocabulary_said() const;
  [[nodiscard]] const Weight& tensor(int t,
                                     StageOf at,
                                     const std::string& name,
                                     const Shape& shape) const;
  std::vector<checkpoint::StreamedTensor> assembled(const std::string& kind);
  void read_state();
  void describe_optimizer();

  std::filesystem::path path_, folder_;
  std::map<Place, Part> parts_;
  int pipeline_ = 0;
  std::size_t chunks_ = 1;
  std::int64_t padded_ = 0;
  bool knows_vocab_ = false;
  /// The tensors of one stack of layers. Each list has one element per stage, in the order of
  /// stages().
  struct Held {
    std::vector<std::string> roots;
    std::vector<std::int64_t> counts;  ///< numbers of layers
  };
  std::vector<Held> held_;
  std::string kind_;  // kind of the tensors that are being assembled
  std::vector<checkpoint::StreamedTensor> made_;
  Foreign out_;
};

}  // namespace tessera::interop::megatron

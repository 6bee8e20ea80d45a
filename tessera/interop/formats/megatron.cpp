// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's torch checkpoints of GPT: one file for each tensor- and pipeline-parallel rank,
// joined here, optimizer state and all. What stands where: docs/formats/others.md.
#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/interop/formats/foreign.h"
#include "tessera/interop/formats/megatron_part.h"
#include "tessera/models/gpt_names.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using megatron::files_of;
using megatron::is_distributed;
using megatron::iteration_folder;
using megatron::Part;
using megatron::Place;
using Shape = std::vector<std::int64_t>;

constexpr const char* kCopy =
    "the checkpoint is damaged or incomplete: copy all of its files again";

bool recognises(const fs::path& path) {
  try {
    const fs::path folder = iteration_folder(path);
    return !files_of(folder).empty() || is_distributed(folder);
  } catch (const std::exception&) {
    return false;
  }
}

using Candidates = std::initializer_list<const char*>;

// The names of megatron.core, without and with norms fused into the projection behind them, and of
// the generations before it.
constexpr Candidates kTokens = {"embedding.word_embeddings.weight",
                                "language_model.embedding.word_embeddings.weight"};
constexpr Candidates kPositions = {"embedding.position_embeddings.weight",
                                   "language_model.embedding.position_embeddings.weight"};
constexpr Candidates kLayers = {
    "decoder.layers.", "language_model.encoder.layers.", "language_model.transformer.layers."};
constexpr Candidates kAttentionNorm = {
    "input_layernorm.", "self_attention.linear_qkv.layer_norm_", "input_norm."};
constexpr Candidates kQkv = {
    "self_attention.linear_qkv.", "self_attention.query_key_value.", "attention.query_key_value."};
constexpr Candidates kProjection = {
    "self_attention.linear_proj.", "self_attention.dense.", "attention.dense."};
constexpr Candidates kMlpNorm = {"pre_mlp_layernorm.",
                                 "mlp.linear_fc1.layer_norm_",
                                 "post_attention_layernorm.",
                                 "post_attention_norm."};
constexpr Candidates kFc1 = {"mlp.linear_fc1.", "mlp.dense_h_to_4h."};
constexpr Candidates kFc2 = {"mlp.linear_fc2.", "mlp.dense_4h_to_h."};
constexpr Candidates kFinalNorm = {"decoder.final_layernorm.",
                                   "language_model.encoder.final_layernorm.",
                                   "language_model.encoder.final_norm.",
                                   "language_model.transformer.final_layernorm."};
constexpr Candidates kHead = {"output_layer.weight", "language_model.output_layer.weight"};

/// Returns the candidate name that exists, or the first candidate if none does, for use in the
/// error message.
std::string named(const Named& tensors,
                  const std::string& before,
                  Candidates names,
                  const char* after = "") {
  for (const char* name : names) {
    if (tensors.has(before + name + after)) return before + name;
  }
  return before + *names.begin();
}

/// A virtual stage of the pipeline: model chunk `chunk` of pipeline rank `rank`.
struct StageOf {
  int rank = 0;
  std::size_t chunk = 0;
};

/// The whole checkpoint.
class Reader {
 public:
  explicit Reader(const fs::path& path) : path_(path) {
    folder_ = iteration_folder(path);
    for (const auto& [place, file] : files_of(folder_)) {
      tensor_ = std::max(tensor_, place.tensor + 1);
      pipeline_ = std::max(pipeline_, place.pipeline + 1);
      parts_.emplace(place, megatron::read_part(file));
    }
    require_part(0, 0);
    // The remaining files do not show that those of the last ranks are missing.
    constexpr std::int64_t kMaxRanks = 10'000;
    const auto ranks = [&](const char* key) {
      return static_cast<int>(std::min(integer_argument(key), kMaxRanks));
    };
    tensor_ =
        std::max({tensor_, ranks("tensor_model_parallel_size"), ranks("model_parallel_size")});
    pipeline_ = std::max(pipeline_, ranks("pipeline_model_parallel_size"));
    chunks_ = first().stages.size();
    for (int t = 0; t < tensor_; ++t) {
      for (int p = 0; p < pipeline_; ++p) {
        require_part(t, p);
        TESSERA_REQUIRE(parts_.at({t, p}).stages.size() == chunks_,
                        Format,
                        fmt::format("{}: has {} virtual stages, and {} has {}",
                                    parts_.at({t, p}).path.string(),
                                    parts_.at({t, p}).stages.size(),
                                    first().path.string(),
                                    chunks_),
                        kCopy);
      }
    }
  }

  Foreign read() {
    read_sizes();
    read_layers();
    read_vocabulary();
    out_.path = path_;
    out_.files = parts_.size();
    out_.step = std::max<std::int64_t>(integer_at(first().values, "iteration", 0), 0);
    if (const std::int64_t samples = integer_argument("consumed_train_samples"); samples > 0)
      out_.samples = samples;
    std::string without;
    for (const auto& [place, part] : parts_) {
      if (without.empty()) without = part.without_state;
    }
    const bool masters = without.empty() && stage(0, {0, 0}).count(megatron::kMasters) > 0;
    out_.weights = assembled(masters ? megatron::kMasters : megatron::kWeights);
    if (!untied_) out_.weights.front().aliases = {names().head};
    if (without.empty()) read_state();
    describe_model();
    out_.what =
        fmt::format("a Megatron-LM checkpoint (tensor parallel {}, pipeline parallel {}{}{})",
                    tensor_,
                    pipeline_,
                    chunks_ > 1 ? fmt::format(", {} virtual stages each", chunks_) : "",
                    vocabulary_said());
    if (!without.empty())
      out_.what += fmt::format(", its weights alone: of its optimizer's state {}", without);
    return std::move(out_);
  }

 private:
  void require_part(int t, int p) const {
    TESSERA_REQUIRE(
        parts_.count({t, p}) > 0,
        Format,
        fmt::format("{}: the file of tensor-parallel rank {}, pipeline rank {} is missing",
                    folder_.string(),
                    t,
                    p),
        kCopy);
  }
  [[nodiscard]] const models::GptNames& names() const {
    return models::names_of_gpt(path_.string());
  }
  [[nodiscard]] const Part& first() const { return parts_.at({0, 0}); }
  [[nodiscard]] const megatron::Stage& stage(int t, StageOf at) const {
    return parts_.at({t, at.rank}).stages[at.chunk];
  }
  /// Its tensors as the model computes with them, on the first tensor-parallel rank.
  [[nodiscard]] const Named& weights(StageOf at) const {
    return stage(0, at).at(megatron::kWeights);
  }
  /// In the order in which a sample meets them.
  [[nodiscard]] std::vector<StageOf> stages() const {
    std::vector<StageOf> out;
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      for (int rank = 0; rank < pipeline_; ++rank)
        out.push_back({rank, chunk});
    }
    return out;
  }

  [[nodiscard]] const json::Value* argument(const char* key) const {
    return at_path(first().values, std::string("args.state.") + key);
  }
  /// 0 where it does not say.
  [[nodiscard]] std::int64_t integer_argument(const char* key) const {
    return integer_at(first().values, std::string("args.state.") + key, 0);
  }
  [[nodiscard]] std::int64_t size(const char* key) const {
    const json::Value* found = argument(key);
    const auto value = found != nullptr && found->is_number() ? found->as_integer() : std::nullopt;
    TESSERA_REQUIRE(value.has_value() && *value > 0 && *value < (std::int64_t{1} << 31),
                    Format,
                    fmt::format("{}: its args have no {}", first().path.string(), key),
                    "expected a checkpoint of Megatron-LM's GPT");
    return *value;
  }
  [[nodiscard]] bool flag(const char* key) const {
    const json::Value* found = argument(key);
    return found != nullptr && found->is_bool() && found->as_bool();
  }
  [[nodiscard]] bool has_number(const char* key) const {
    const json::Value* found = argument(key);
    return found != nullptr && found->is_number();
  }
  [[nodiscard]] bool is_another(const char* key, const char* word) const {
    const json::Value* found = argument(key);
    return found != nullptr && found->is_string() && found->as_string() != word;
  }
  void refuse(bool bad, const char* what) const {
    TESSERA_REQUIRE(!bad,
                    Unsupported,
                    fmt::format("{}: {}, which is no GPT-2", first().path.string(), what),
                    "only models of GPT-2's kind are read from this format");
  }

  void read_sizes() {
    layers_ = size("num_layers");
    width_ = size("hidden_size");
    heads_ = size("num_attention_heads");
    positions_ = size("max_position_embeddings");
    inner_ = has_number("ffn_hidden_size") ? size("ffn_hidden_size") : 4 * width_;
    untied_ = flag("untie_embeddings_and_output_weights");
    refuse(flag("swiglu"), "its MLP is gated");
    refuse(flag("squared_relu"), "its activation is a squared ReLU");
    refuse(argument("add_bias_linear") != nullptr && !flag("add_bias_linear"), "it has no biases");
    refuse(flag("group_query_attention"), "its attention is grouped");
    refuse(flag("multi_latent_attention"), "its attention is latent");
    refuse(flag("qk_layernorm"), "its queries and keys have norms");
    refuse(has_number("num_experts"), "it has experts");
    refuse(is_another("normalization", "LayerNorm"), "its norm is another");
    refuse(flag("apply_layernorm_1p"), "its norms keep their weight less one");
    refuse(flag("apply_residual_connection_post_layernorm"), "its residuals begin behind the norm");
    refuse(is_another("position_embedding_type", "learned_absolute") ||
               flag("use_rotary_position_embeddings"),
           "its positions are not learned");
    refuse(width_ % heads_ != 0, "its heads do not divide its width");
    refuse(has_number("kv_channels") && integer_argument("kv_channels") != width_ / heads_,
           "its heads do not make up its width");
    refuse(heads_ % tensor_ != 0 || inner_ % tensor_ != 0,
           "its heads do not fit its tensor-parallel ranks");
  }

  /// How many layers a stage has: each counts its own from 0.
  [[nodiscard]] std::int64_t layers_in(StageOf at, const std::string& root) const {
    constexpr std::int64_t kMaxLayers = 1 << 20;
    std::int64_t count = 0;
    for (const Weight& weight : weights(at).all()) {
      if (!weight.name.starts_with(root)) continue;
      std::int64_t layer = -1;
      const char* const end = weight.name.data() + weight.name.size();
      const auto [rest, failed] = std::from_chars(weight.name.data() + root.size(), end, layer);
      if (failed == std::errc() && rest != end && *rest == '.' && layer >= 0 && layer < kMaxLayers)
        count = std::max(count, layer + 1);
    }
    return count;
  }
  /// Stages may hold unlike many layers: the first and last may have fewer.
  void read_layers() {
    std::int64_t held = 0;
    for (const StageOf at : stages()) {
      std::string root;
      for (const char* name : kLayers) {
        if (layers_in(at, name) > 0) root = name;
      }
      roots_.push_back(root);
      counts_.push_back(root.empty() ? 0 : layers_in(at, root));
      held += counts_.back();
    }
    TESSERA_REQUIRE(held > 0,
                    Unsupported,
                    fmt::format("{}: has no tensors of a GPT under names that are known",
                                first().path.string()),
                    "expected Megatron-LM's GPTModel, saved with --ckpt-format torch");
    TESSERA_REQUIRE(
        held == layers_,
        Format,
        fmt::format(
            "{}: its stages hold {} layers, and its args say {}", folder_.string(), held, layers_),
        kCopy);
  }

  /// The table is padded so that it divides. Where args say the true size (of a tokenizer they
  /// keep the file's name alone) the padding goes; else it stays: it was trained as all rows are.
  void read_vocabulary() {
    const Named& held = weights({0, 0});
    const std::string name = named(held, "", kTokens);
    const Weight* table = held.find(name);
    TESSERA_REQUIRE(table != nullptr && table->shape.size() == 2 && table->shape[1] == width_ &&
                        table->contiguous(),
                    Format,
                    fmt::format("{}: has no {} of width {}", first().path.string(), name, width_),
                    kCopy);
    padded_ = table->shape[0] * tensor_;
    vocab_ = padded_;
    const json::Value* tokenizer = argument("tokenizer_type");
    const bool counts_end_apart =
        tokenizer != nullptr && tokenizer->is_string() && tokenizer->as_string() == "NullTokenizer";
    const std::int64_t size = integer_argument("vocab_size");
    const std::int64_t multiple = integer_argument("make_vocab_size_divisible_by");
    if (size <= 0 || size > padded_) return;
    const std::int64_t truth = size + (counts_end_apart ? 1 : 0);
    // What is not rounded up as Megatron rounds is another number.
    knows_vocab_ = truth <= padded_ && (padded_ - truth) / tensor_ < multiple;
    if (knows_vocab_) vocab_ = truth;
  }
  [[nodiscard]] std::string vocabulary_said() const {
    if (!knows_vocab_) return fmt::format(", {} token rows with any padding", padded_);
    return vocab_ < padded_ ? fmt::format(", {} of its {} token rows", vocab_, padded_) : "";
  }

  [[nodiscard]] const Weight& tensor(int t,
                                     StageOf at,
                                     const std::string& name,
                                     const Shape& shape) const {
    const auto held = stage(t, at).find(kind_);
    const Weight* found = held == stage(t, at).end() ? nullptr : held->second.find(name);
    TESSERA_REQUIRE(
        found != nullptr && found->shape == shape,
        Format,
        fmt::format(
            "{}: {} {}, and [{}] fits the rest",
            parts_.at({t, at.rank}).path.string(),
            name,
            found == nullptr ? "is missing" : fmt::format("is [{}]", fmt::join(found->shape, ", ")),
            fmt::join(shape, ", ")),
        kCopy);
    TESSERA_REQUIRE(
        found->contiguous(),
        Unsupported,
        fmt::format("{}: {} is a view with strides", parts_.at({t, at.rank}).path.string(), name),
        "save it again from contiguous tensors");
    return *found;
  }
  void replicated(StageOf at,
                  const std::string& theirs,
                  const std::string& name,
                  const Shape& shape) {
    made_.push_back(stream(tensor(0, at, theirs, shape), name));
  }
  /// Ranks hold slices of `dim` of `shape`; `view` makes of each what stands in Hugging Face's
  /// file.
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
  /// A row for each token, without those that pad.
  void add_table(StageOf at, Candidates theirs, const std::string& name) {
    const std::int64_t rows = padded_ / tensor_;
    std::vector<Weight> parts;
    for (int t = 0; t < tensor_; ++t) {
      Weight part = tensor(t, at, named(weights(at), "", theirs), {rows, width_});
      part.shape[0] = std::clamp<std::int64_t>(vocab_ - t * rows, 0, rows);
      if (part.shape[0] > 0) parts.push_back(std::move(part));
    }
    made_.push_back(
        concatenate(name, {vocab_, width_}, 0, std::move(parts), {vocab_, width_}, path_.string()));
  }

  // Version 0 keeps q, k and v one after the other, version 1 the three of each value together,
  // later ones those of each head.
  [[nodiscard]] Weight qkv_view(Weight local, std::int64_t columns) const {
    const std::int64_t heads = heads_ / tensor_, dim = width_ / heads_;
    const double version = number_at(first().values, "checkpoint_version").value_or(0.0);
    const bool matrix = columns > 0;
    const std::int64_t row = matrix ? columns : 1;
    // [3, heads, dim] of rows, by how far apart their indices lie.
    const Shape strides = version >= 2.0   ? Shape{dim * row, 3 * dim * row, row}
                          : version >= 1.0 ? Shape{row, 3 * dim * row, 3 * row}
                                           : Shape{heads * dim * row, dim * row, row};
    local.shape = {3, heads, dim};
    local.strides = strides;
    if (matrix) {
      local.shape.insert(local.shape.begin(), columns);
      local.strides.insert(local.strides.begin(), 1);
    }
    return local;
  }

  void add_norm(StageOf at, const std::string& theirs, const std::string& name) {
    for (const char* part : {"weight", "bias"})
      replicated(at, theirs + part, name + "." + part, {width_});
  }
  /// [3 width, width] by heads: made [width, 3 width] with the queries, the keys, the values.
  void add_attention_input(StageOf at, const std::string& theirs, const std::string& name) {
    const std::int64_t local = 3 * width_ / tensor_, dim = width_ / heads_;
    joined(at,
           theirs + "weight",
           name + ".weight",
           {local, width_},
           {width_, 3, heads_, dim},
           2,
           {width_, 3 * width_},
           [&](const Weight& w) { return qkv_view(w, width_); });
    joined(at,
           theirs + "bias",
           name + ".bias",
           {local},
           {3, heads_, dim},
           1,
           {3 * width_},
           [&](const Weight& w) { return qkv_view(w, 0); });
  }
  /// [to, from], cut along `to`.
  void add_column_parallel(StageOf at,
                           const std::string& theirs,
                           const std::string& name,
                           std::int64_t to,
                           std::int64_t from) {
    joined(at,
           theirs + "weight",
           name + ".weight",
           {to / tensor_, from},
           {from, to},
           1,
           {from, to},
           [](const Weight& w) { return transposed(w); });
    joined(at, theirs + "bias", name + ".bias", {to / tensor_}, {to}, 0, {to}, [](const Weight& w) {
      return w;
    });
  }
  /// [to, from], cut along `from`.
  void add_row_parallel(StageOf at,
                        const std::string& theirs,
                        const std::string& name,
                        std::int64_t to,
                        std::int64_t from) {
    joined(at,
           theirs + "weight",
           name + ".weight",
           {to, from / tensor_},
           {from, to},
           0,
           {from, to},
           [](const Weight& w) { return transposed(w); });
    replicated(at, theirs + "bias", name + ".bias", {to});
  }
  void add_layer(StageOf at, const std::string& theirs, std::int64_t layer) {
    const auto of = [&](Candidates names) { return named(weights(at), theirs, names, "weight"); };
    const auto name = [&](const std::string& module) { return names().in_layer(layer, module); };
    add_norm(at, of(kAttentionNorm), name(names().attention_norm));
    add_attention_input(at, of(kQkv), name(names().attention_input));
    add_row_parallel(at, of(kProjection), name(names().attention_output), width_, width_);
    add_norm(at, of(kMlpNorm), name(names().mlp_norm));
    add_column_parallel(at, of(kFc1), name(names().mlp_input), inner_, width_);
    add_row_parallel(at, of(kFc2), name(names().mlp_output), width_, inner_);
  }

  /// All tensors of the model, of what the optimizer keeps as `kind`.
  std::vector<checkpoint::StreamedTensor> assembled(const std::string& kind) {
    kind_ = kind;
    made_.clear();
    const std::vector<StageOf> order = stages();
    add_table(order.front(), kTokens, names().table);
    replicated(order.front(),
               named(weights(order.front()), "", kPositions),
               names().positions,
               {positions_, width_});
    std::int64_t layer = 0;
    for (std::size_t s = 0; s < order.size(); ++s) {
      for (std::int64_t i = 0; i < counts_[s]; ++i, ++layer)
        add_layer(order[s], fmt::format("{}{}.", roots_[s], i), layer);
    }
    add_norm(
        order.back(), named(weights(order.back()), "", kFinalNorm, "weight"), names().final_norm);
    if (untied_) add_table(order.back(), kHead, names().head);
    return std::move(made_);
  }

  void read_state() {
    for (const std::string& moment : first().moments)
      out_.state.emplace(moment, assembled(moment));
    if (first().updates && *first().updates <= out_.step)
      out_.skipped = out_.step - *first().updates;
    out_.lr = first().lr;
    out_.loss_scaler = first().loss_scaler;
    describe_optimizer();
  }

  // Megatron's Adam is apex's, which decays beside the update.
  void describe_optimizer() {
    json::Value params = json::Value::object();
    const auto copy = [&](const char* theirs, const char* ours) {
      if (has_number(theirs)) params[ours] = *argument(theirs);
    };
    copy("lr", "lr");
    copy("weight_decay", "weight_decay");
    const json::Value* type = argument("optimizer");
    const bool sgd = type != nullptr && type->is_string() && type->as_string() == "sgd";
    if (sgd) {
      copy("sgd_momentum", "momentum");
    } else {
      copy("adam_eps", "eps");
      if (has_number("adam_beta1") && has_number("adam_beta2"))
        params["betas"] = json::Value::array({*argument("adam_beta1"), *argument("adam_beta2")});
    }
    out_.config = json::Value::object(
        {{"optimizer",
          json::Value::object({{"type", json::Value::string(sgd ? "SGD" : "AdamW")},
                               {"params", std::move(params)}})}});
    if (has_number("clip_grad")) out_.config["gradient_clipping"] = *argument("clip_grad");
  }

  void describe_model() {
    const auto number = [](std::int64_t value) { return json::Value::integer(value); };
    const char* activation = flag("openai_gelu")        ? "gelu_new"
                             : flag("bias_gelu_fusion") ? "gelu_fast"
                                                        : "gelu";
    const json::Value* eps = argument("layernorm_epsilon");
    if (eps == nullptr || !eps->is_number()) eps = argument("norm_epsilon");
    json::Value facts = json::Value::object(
        {{"vocab_size", number(vocab_)},
         {"max_positions", number(positions_)},
         {"hidden_size", number(width_)},
         {"ffn_hidden_size", number(inner_)},
         {"num_layers", number(layers_)},
         {"num_heads", number(heads_)},
         {"activation", json::Value::string(activation)},
         {"norm_eps", eps != nullptr && eps->is_number() ? *eps : json::Value::number(1e-5)}});
    if (untied_) facts["tie_embeddings"] = json::Value::boolean(false);
    out_.model_config = names().config_of(facts);
  }

  fs::path path_, folder_;
  std::map<Place, Part> parts_;
  int tensor_ = 0, pipeline_ = 0;
  std::size_t chunks_ = 1;
  std::int64_t layers_ = 0, width_ = 0, heads_ = 0, positions_ = 0, inner_ = 0;
  std::int64_t vocab_ = 0, padded_ = 0;
  bool untied_ = false, knows_vocab_ = false;
  std::vector<std::string> roots_;    // of each stage, in the order of stages()
  std::vector<std::int64_t> counts_;  // its layers
  std::string kind_;                  // of what is assembled
  std::vector<checkpoint::StreamedTensor> made_;
  Foreign out_;
};

Foreign open(const fs::path& path) {
  TESSERA_REQUIRE(!is_distributed(iteration_folder(path)),
                  Unsupported,
                  fmt::format("{}: is of Megatron-LM's format torch_dist, which is not read",
                              iteration_folder(path).string()),
                  "save it with --ckpt-format torch, or let Megatron-LM convert it: "
                  "--ckpt-convert-format torch");
  return Reader(path).read();
}

TESSERA_FOREIGN_FORMAT("megatron", (ForeignFormat{recognises, open}));

}  // namespace
}  // namespace tessera::interop

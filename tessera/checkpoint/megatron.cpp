// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's torch checkpoints of GPT: one file for each tensor- and pipeline-parallel rank,
// joined here. Weights alone. What stands where: docs/formats/others.md.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <regex>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/foreign.h"
#include "tessera/checkpoint/torch_file.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<std::int64_t>;

constexpr const char* kCopy =
    "the checkpoint is damaged or incomplete: copy all of its files again";

struct Place {
  int tensor = 0, pipeline = 0;
  auto operator<=>(const Place&) const = default;
};

/// "mp_rank_01", "mp_rank_01_003".
std::optional<Place> place_of(const fs::path& folder) {
  static const std::regex kName("mp_rank_(\\d{2,4})(?:_(\\d{3,4}))?");
  std::smatch match;
  const std::string name = folder.filename().string();
  if (!std::regex_match(name, match, kName)) return std::nullopt;
  return Place{std::stoi(match[1].str()), match[2].matched ? std::stoi(match[2].str()) : 0};
}

std::optional<fs::path> file_in(const fs::path& folder) {
  std::error_code failed;
  for (const char* name : {"model_optim_rng.pt", "model_rng.pt"}) {
    if (fs::is_regular_file(folder / name, failed)) return folder / name;
  }
  return std::nullopt;
}

std::map<Place, fs::path> files_of(const fs::path& folder) {
  std::error_code failed;
  std::map<Place, fs::path> out;
  if (!fs::is_directory(folder, failed)) return out;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const auto place = place_of(entry.path());
    if (!place) continue;
    if (const auto file = file_in(entry.path())) out.emplace(*place, *file);
  }
  return out;
}

/// The folder of the iteration: `path`, or the one that its tracker names.
fs::path iteration_folder(const fs::path& path) {
  const fs::path tracker = path / "latest_checkpointed_iteration.txt";
  std::error_code failed;
  if (!fs::is_regular_file(tracker, failed) || fs::file_size(tracker, failed) > 64) return path;
  const std::string word(text::trim(files::read(tracker)));
  if (word == "release") return path / word;
  if (word.empty() || word.size() > 12 || word.find_first_not_of("0123456789") != std::string::npos)
    return path;
  return path / fmt::format("iter_{:07}", std::stoll(word));
}

bool recognises(const fs::path& path) {
  try {
    return !files_of(iteration_folder(path)).empty();
  } catch (const std::exception&) {
    return false;
  }
}

/// How the two generations of Megatron call the same thing.
struct Names {
  const char *tokens, *positions, *layers, *attention_norm, *qkv, *dense, *mlp_norm, *fc1, *fc2,
      *norm;
};
constexpr std::array<Names, 4> kNames = {
    {{"model.embedding.word_embeddings.weight",
      "model.embedding.position_embeddings.weight",
      "model.decoder.layers.",
      "input_layernorm.",
      "self_attention.linear_qkv.",
      "self_attention.linear_proj.",
      "pre_mlp_layernorm.",
      "mlp.linear_fc1.",
      "mlp.linear_fc2.",
      "model.decoder.final_layernorm."},
     {"model.embedding.word_embeddings.weight",
      "model.embedding.position_embeddings.weight",
      "model.decoder.layers.",
      "self_attention.linear_qkv.layer_norm_",
      "self_attention.linear_qkv.",
      "self_attention.linear_proj.",
      "mlp.linear_fc1.layer_norm_",
      "mlp.linear_fc1.",
      "mlp.linear_fc2.",
      "model.decoder.final_layernorm."},
     {"model.language_model.embedding.word_embeddings.weight",
      "model.language_model.embedding.position_embeddings.weight",
      "model.language_model.encoder.layers.",
      "input_layernorm.",
      "self_attention.query_key_value.",
      "self_attention.dense.",
      "post_attention_layernorm.",
      "mlp.dense_h_to_4h.",
      "mlp.dense_4h_to_h.",
      "model.language_model.encoder.final_layernorm."},
     {"model.language_model.embedding.word_embeddings.weight",
      "model.language_model.embedding.position_embeddings.weight",
      "model.language_model.transformer.layers.",
      "input_layernorm.",
      "attention.query_key_value.",
      "attention.dense.",
      "post_attention_layernorm.",
      "mlp.dense_h_to_4h.",
      "mlp.dense_4h_to_h.",
      "model.language_model.transformer.final_layernorm."}}};

/// One rank's file.
struct Part {
  fs::path path;
  json::Value values;
  Named tensors = Named({});
};

/// The whole checkpoint.
class Reader {
 public:
  explicit Reader(const fs::path& path) : path_(path) {
    const fs::path folder = iteration_folder(path);
    for (const auto& [place, file] : files_of(folder)) {
      tensor_ = std::max(tensor_, place.tensor + 1);
      pipeline_ = std::max(pipeline_, place.pipeline + 1);
      TorchContents contents = read_torch_file(file);
      parts_.emplace(place,
                     Part{file, std::move(contents.values), Named(std::move(contents.tensors))});
    }
    for (int t = 0; t < tensor_; ++t) {
      for (int p = 0; p < pipeline_; ++p) {
        TESSERA_REQUIRE(
            parts_.count({t, p}) > 0,
            Format,
            fmt::format("{}: the file of tensor-parallel rank {}, pipeline rank {} is missing",
                        folder.string(),
                        t,
                        p),
            kCopy);
      }
    }
  }

  Foreign read() {
    read_sizes();
    choose_names();
    out_.path = path_;
    out_.files = parts_.size();
    out_.step = std::max<std::int64_t>(integer_at(first().values, "iteration", 0), 0);
    out_.what = fmt::format(
        "a Megatron-LM checkpoint (tensor parallel {}, pipeline parallel {}), whose optimizer is "
        "not read",
        tensor_,
        pipeline_);
    add_embeddings();
    for (int p = 0; p < pipeline_; ++p)
      add_layers(p);
    add_final_norm();
    describe();
    return std::move(out_);
  }

 private:
  [[nodiscard]] const Part& first() const { return parts_.at({0, 0}); }
  [[nodiscard]] const json::Value* argument(const char* key) const {
    return at_path(first().values, std::string("args.state.") + key);
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
  void refuse(bool bad, const char* what) const {
    TESSERA_REQUIRE(!bad,
                    Unsupported,
                    fmt::format("{}: {}, which is no GPT-2", first().path.string(), what),
                    "only models of GPT-2's kind are read from this format");
  }

  void read_sizes() {
    for (const auto& [place, part] : parts_) {
      TESSERA_REQUIRE(part.values.find("model0") == nullptr,
                      Unsupported,
                      fmt::format("{}: is of an interleaved pipeline", part.path.string()),
                      "save it from one without virtual stages");
    }
    layers_ = size("num_layers");
    width_ = size("hidden_size");
    heads_ = size("num_attention_heads");
    positions_ = size("max_position_embeddings");
    inner_ = argument("ffn_hidden_size") != nullptr && argument("ffn_hidden_size")->is_number()
                 ? size("ffn_hidden_size")
                 : 4 * width_;
    refuse(flag("swiglu"), "its MLP is gated");
    refuse((argument("add_bias_linear") != nullptr && !flag("add_bias_linear")),
           "it has no biases");
    refuse(flag("group_query_attention"), "its attention is grouped");
    refuse(argument("num_experts") != nullptr && argument("num_experts")->is_number(),
           "it has experts");
    const json::Value* norm = argument("normalization");
    refuse(norm != nullptr && norm->is_string() && norm->as_string() != "LayerNorm",
           "its norm is another");
    const json::Value* position = argument("position_embedding_type");
    refuse(
        position != nullptr && position->is_string() && position->as_string() != "learned_absolute",
        "its positions are not learned");
    refuse(width_ % heads_ != 0, "its heads do not divide its width");
    refuse(heads_ % tensor_ != 0 || inner_ % tensor_ != 0,
           "its heads do not fit its tensor-parallel ranks");
    refuse(layers_ % pipeline_ != 0, "its layers do not fit its pipeline ranks");
  }

  void choose_names() {
    for (const Names& names : kNames) {
      const std::string probe = std::string(names.layers) + "0." + names.attention_norm + "weight";
      if (first().tensors.has(probe)) {
        names_ = &names;
        return;
      }
    }
    throw Error(Error::Kind::Unsupported,
                fmt::format("{}: has no tensors of a GPT under names that are known",
                            first().path.string()),
                "expected Megatron-LM's GPTModel, saved with --ckpt-format torch");
  }

  [[nodiscard]] const Weight& tensor(int t,
                                     int p,
                                     const std::string& name,
                                     const Shape& shape) const {
    const Part& part = parts_.at({t, p});
    const Weight* found = part.tensors.find(name);
    TESSERA_REQUIRE(
        found != nullptr && found->shape == shape,
        Format,
        fmt::format(
            "{}: {} {}, and [{}] fits the rest",
            part.path.string(),
            name,
            found == nullptr ? "is missing" : fmt::format("is [{}]", fmt::join(found->shape, ", ")),
            fmt::join(shape, ", ")),
        kCopy);
    TESSERA_REQUIRE(found->contiguous(),
                    Unsupported,
                    fmt::format("{}: {} is a view with strides", part.path.string(), name),
                    "save it again from contiguous tensors");
    return *found;
  }
  void add(StreamedTensor tensor) { out_.weights.push_back(std::move(tensor)); }
  void replicated(int p, const std::string& theirs, const std::string& name, const Shape& shape) {
    add(stream(tensor(0, p, theirs, shape), "transformer." + name));
  }
  /// Ranks hold slices of `dim` of `shape`; `view` makes of each what stands in Hugging Face's
  /// file.
  template <class View>
  void joined(int p,
              const std::string& theirs,
              const std::string& name,
              Shape local,
              const Shape& shape,
              std::size_t dim,
              const Shape& to,
              View view) {
    std::vector<Weight> parts;
    for (int t = 0; t < tensor_; ++t)
      parts.push_back(view(tensor(t, p, theirs, local)));
    add(concatenate("transformer." + name, shape, dim, std::move(parts), to, path_.string()));
  }

  void add_embeddings() {
    const Weight* table = first().tensors.find(names_->tokens);
    TESSERA_REQUIRE(table != nullptr && table->shape.size() == 2,
                    Format,
                    fmt::format("{}: has no {}", first().path.string(), names_->tokens),
                    kCopy);
    // Padded so that it divides; the rows behind the vocabulary were trained as all others.
    vocab_ = table->shape[0] * tensor_;
    joined(0,
           names_->tokens,
           "wte.weight",
           {vocab_ / tensor_, width_},
           {vocab_, width_},
           0,
           {vocab_, width_},
           [](const Weight& w) { return w; });
    if (!flag("untie_embeddings_and_output_weights")) {
      out_.weights.back().aliases = {"lm_head.weight"};
    } else {
      refuse(true, "its head is not the embedding");
    }
    replicated(0, names_->positions, "wpe.weight", {positions_, width_});
  }

  // Version 0 keeps q, k and v one after the other, version 1 the three of each value together,
  // later ones those of each head.
  [[nodiscard]] Weight qkv_view(Weight local, std::int64_t columns) const {
    const std::int64_t heads = heads_ / tensor_, dim = width_ / heads_;
    const json::Value* version = at_path(first().values, "checkpoint_version");
    const double number = version != nullptr && version->is_number() ? version->as_double() : 0.0;
    const bool matrix = columns > 0;
    const std::int64_t row = matrix ? columns : 1;
    // [3, heads, dim] of rows, by how far apart their indices lie.
    const Shape strides = number >= 2.0   ? Shape{dim * row, 3 * dim * row, row}
                          : number >= 1.0 ? Shape{row, 3 * dim * row, 3 * row}
                                          : Shape{heads * dim * row, dim * row, row};
    local.shape = {3, heads, dim};
    local.strides = strides;
    if (matrix) {
      local.shape.insert(local.shape.begin(), columns);
      local.strides.insert(local.strides.begin(), 1);
    }
    return local;
  }

  void add_layers(int p) {
    const std::int64_t count = layers_ / pipeline_;
    const std::int64_t local_width = width_ / tensor_, local_inner = inner_ / tensor_;
    const std::int64_t dim = width_ / heads_;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::string theirs = fmt::format("{}{}.", names_->layers, i);
      const std::string ours = fmt::format("h.{}.", p * count + i);
      for (const char* part : {"weight", "bias"})
        replicated(p, theirs + names_->attention_norm + part, ours + "ln_1." + part, {width_});
      joined(p,
             theirs + names_->qkv + "weight",
             ours + "attn.c_attn.weight",
             {3 * local_width, width_},
             {width_, 3, heads_, dim},
             2,
             {width_, 3 * width_},
             [&](const Weight& w) { return qkv_view(w, width_); });
      joined(p,
             theirs + names_->qkv + "bias",
             ours + "attn.c_attn.bias",
             {3 * local_width},
             {3, heads_, dim},
             1,
             {3 * width_},
             [&](const Weight& w) { return qkv_view(w, 0); });
      row_parallel(p, theirs + names_->dense, ours + "attn.c_proj", width_, width_);
      for (const char* part : {"weight", "bias"})
        replicated(p, theirs + names_->mlp_norm + part, ours + "ln_2." + part, {width_});
      joined(p,
             theirs + names_->fc1 + "weight",
             ours + "mlp.c_fc.weight",
             {local_inner, width_},
             {width_, inner_},
             1,
             {width_, inner_},
             [](const Weight& w) { return transposed(w); });
      joined(p,
             theirs + names_->fc1 + "bias",
             ours + "mlp.c_fc.bias",
             {local_inner},
             {inner_},
             0,
             {inner_},
             [](const Weight& w) { return w; });
      row_parallel(p, theirs + names_->fc2, ours + "mlp.c_proj", width_, inner_);
    }
  }
  /// [to, from], cut along `from`.
  void row_parallel(int p,
                    const std::string& theirs,
                    const std::string& name,
                    std::int64_t to,
                    std::int64_t from) {
    joined(p,
           theirs + "weight",
           name + ".weight",
           {to, from / tensor_},
           {from, to},
           0,
           {from, to},
           [](const Weight& w) { return transposed(w); });
    replicated(p, theirs + "bias", name + ".bias", {to});
  }
  void add_final_norm() {
    for (const char* part : {"weight", "bias"})
      replicated(
          pipeline_ - 1, std::string(names_->norm) + part, std::string("ln_f.") + part, {width_});
  }

  void describe() {
    const auto number = [](std::int64_t value) { return json::Value::integer(value); };
    const char* activation = flag("openai_gelu")        ? "gelu_new"
                             : flag("bias_gelu_fusion") ? "gelu_fast"
                                                        : "gelu";
    const json::Value* eps = argument("layernorm_epsilon");
    if (eps == nullptr || !eps->is_number()) eps = argument("norm_epsilon");
    out_.model_config = json::Value::object(
        {{"architectures", json::Value::array({json::Value::string("GPT2LMHeadModel")})},
         {"model_type", json::Value::string("gpt2")},
         {"vocab_size", number(vocab_)},
         {"n_positions", number(positions_)},
         {"n_embd", number(width_)},
         {"n_inner", number(inner_)},
         {"n_layer", number(layers_)},
         {"n_head", number(heads_)},
         {"activation_function", json::Value::string(activation)},
         {"layer_norm_epsilon",
          eps != nullptr && eps->is_number() ? *eps : json::Value::number(1e-5)}});
  }

  fs::path path_;
  std::map<Place, Part> parts_;
  int tensor_ = 0, pipeline_ = 0;
  const Names* names_ = nullptr;
  std::int64_t layers_ = 0, width_ = 0, heads_ = 0, positions_ = 0, inner_ = 0, vocab_ = 0;
  Foreign out_;
};

Foreign open(const fs::path& path) {
  return Reader(path).read();
}

TESSERA_FOREIGN_FORMAT("megatron", (ForeignFormat{recognises, open}));

}  // namespace
}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::interop::megatron {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCopy =
    "the checkpoint is damaged or incomplete: copy all of its files again";

}  // namespace

std::string named(const Named& tensors,
                  const std::string& before,
                  Candidates names,
                  const char* after) {
  for (const char* name : names) {
    if (tensors.has(before + name + after)) return before + name;
  }
  return before + *names.begin();
}

const Stage& Reader::stage(int t, StageOf at) const {
  return parts_.at({t, at.rank}).stages[at.chunk];
}

const Named& Reader::weights(StageOf at) const {
  return stage(0, at).at(kWeights);
}

void Reader::refuse(bool bad, const std::string& what) const {
  TESSERA_REQUIRE(!bad,
                  Unsupported,
                  fmt::format("{}: {}", first().path.string(), what),
                  "models of this kind are not read from Megatron-LM's files");
}

void Reader::replicated(StageOf at,
                        const std::string& theirs,
                        const std::string& name,
                        const Shape& shape) {
  made_.push_back(stream(tensor(0, at, theirs, shape), name));
}

std::vector<checkpoint::StreamedTensor> Reader::assembled(const std::string& kind) {
  kind_ = kind;
  made_.clear();
  const std::vector<StageOf> order = stages();
  add_rows_of_vocabulary(order.front(), kTokens, table_name());
  add_first(order.front());
  for (std::size_t stack = 0; stack < held_.size(); ++stack) {
    const Held& held = held_[stack];
    LayerOf layer{.stack = stack};
    for (std::size_t s = 0; s < order.size(); ++s) {
      for (std::int64_t i = 0; i < held.counts[s]; ++i, ++layer.number)
        add_layer(order[s], fmt::format("{}{}.", held.roots[s], i), layer);
    }
  }
  add_last(order.back());
  if (untied_) add_rows_of_vocabulary(order.back(), kHead, head_name());
  return std::move(made_);
}

Reader::Reader(fs::path path) : path_(std::move(path)) {
  folder_ = iteration_folder(path_);
  for (const auto& [place, file] : files_of(folder_))
    parts_.emplace(place, read_part(file));
  require_part(0, 0);
  tell_experts_from_stages();
  for (const auto& [place, part] : parts_) {
    tensor_ = std::max(tensor_, place.tensor + 1);
    pipeline_ = std::max(pipeline_, place.pipeline + 1);
    expert_ranks_ = std::max(expert_ranks_, place.expert + 1);
  }
  // The existing files do not reveal that those of the last ranks are missing.
  constexpr std::int64_t kMaxRanks = 10'000;
  const auto ranks = [&](const char* key) {
    return static_cast<int>(std::min(integer_argument(key), kMaxRanks));
  };
  tensor_ = std::max({tensor_, ranks("tensor_model_parallel_size"), ranks("model_parallel_size")});
  pipeline_ = std::max(pipeline_, ranks("pipeline_model_parallel_size"));
  expert_ranks_ = std::max(expert_ranks_, ranks("expert_model_parallel_size"));
  chunks_ = first().stages.size();
  for (int t = 0; t < tensor_; ++t) {
    for (int p = 0; p < pipeline_; ++p) {
      for (int e = 0; e < expert_ranks_; ++e)
        require_part(t, p, e);
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

/// Without a pipeline, the number after that of the tensor-parallel rank is that of experts.
void Reader::tell_experts_from_stages() {
  const bool numbered = std::any_of(
      parts_.begin(), parts_.end(), [](const auto& part) { return part.first.expert > 0; });
  if (numbered || integer_argument("expert_model_parallel_size") <= 1 ||
      integer_argument("pipeline_model_parallel_size") > 1)
    return;
  std::map<Place, Part> renamed;
  for (auto& [place, part] : parts_)
    renamed.emplace(Place{place.tensor, 0, place.pipeline}, std::move(part));
  parts_ = std::move(renamed);
}

ModelKind Reader::kind() const {
  ModelKind out = ModelKind::Decoder;
  for (const StageOf at : stages()) {
    for (const Weight& weight : weights(at).all()) {
      const auto has = [&](const char* part) {
        return weight.name.find(part) != std::string::npos;
      };
      if (has("inter_attention.") || has("cross_attention.")) return ModelKind::EncoderDecoder;
      if (has("tokentype_embeddings.") || has("binary_head.") || has("lm_head.dense."))
        out = ModelKind::Encoder;
    }
  }
  return out;
}

Foreign Reader::read() {
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
  const bool has_masters = without.empty() && stage(0, {0, 0}).count(kMasters) > 0;
  if (without.empty()) without = state_obstacle();
  out_.weights = assembled(has_masters ? kMasters : kWeights);
  if (!untied_) out_.weights.front().aliases = {head_name()};
  if (without.empty()) read_state();
  out_.model_config = model_config();
  out_.what =
      fmt::format("a Megatron-LM checkpoint (tensor parallel {}, pipeline parallel {}{}{}{})",
                  tensor_,
                  pipeline_,
                  expert_ranks_ > 1 ? fmt::format(", expert parallel {}", expert_ranks_) : "",
                  chunks_ > 1 ? fmt::format(", {} virtual stages each", chunks_) : "",
                  vocabulary_said());
  if (!without.empty())
    out_.what += fmt::format(", its weights alone: of its optimizer's state {}", without);
  return std::move(out_);
}

void Reader::require_part(int t, int p, int e) const {
  TESSERA_REQUIRE(
      parts_.count({t, p, e}) > 0,
      Format,
      fmt::format("{}: the file of tensor-parallel rank {}, pipeline rank {}{} is missing",
                  folder_.string(),
                  t,
                  p,
                  expert_ranks_ > 1 ? fmt::format(", expert-parallel rank {}", e) : ""),
      kCopy);
}

void Reader::add_joined(const std::string& name,
                        const Shape& shape,
                        std::size_t dim,
                        std::vector<Weight> parts) {
  made_.push_back(concatenate(name, shape, dim, std::move(parts), shape, path_.string()));
}

const Named& Reader::held_by(int t, StageOf at, int expert_rank) const {
  const Part& part = parts_.at({t, at.rank, expert_rank});
  TESSERA_REQUIRE(
      at.chunk < part.stages.size() && part.stages[at.chunk].count(kind_) > 0,
      Format,
      fmt::format("{}: lacks tensors that {} has", part.path.string(), first().path.string()),
      kCopy);
  return part.stages[at.chunk].at(kind_);
}

const Weight& Reader::expert_tensor(
    int t, StageOf at, int expert_rank, const std::string& name, const Shape& shape) const {
  const Weight* const found = held_by(t, at, expert_rank).find(name);
  TESSERA_REQUIRE(
      found != nullptr && found->shape == shape && found->contiguous(),
      Format,
      fmt::format("{}: {} {}, and [{}] fits the rest",
                  parts_.at({t, at.rank, expert_rank}).path.string(),
                  name,
                  found == nullptr        ? "is missing"
                  : found->shape != shape ? fmt::format("is [{}]", fmt::join(found->shape, ", "))
                                          : "is a view with strides",
                  fmt::join(shape, ", ")),
      kCopy);
  return *found;
}

/// In the order of the forward pass.
std::vector<StageOf> Reader::stages() const {
  std::vector<StageOf> out;
  for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
    for (int rank = 0; rank < pipeline_; ++rank)
      out.push_back({rank, chunk});
  }
  return out;
}

const json::Value* Reader::argument(const char* key) const {
  return at_path(first().values, std::string("args.state.") + key);
}

std::int64_t Reader::integer_argument(const char* key) const {
  return integer_at(first().values, std::string("args.state.") + key, 0);
}

std::int64_t Reader::size(const char* key) const {
  const json::Value* found = argument(key);
  const auto value = found != nullptr && found->is_number() ? found->as_integer() : std::nullopt;
  TESSERA_REQUIRE(value.has_value() && *value > 0 && *value < (std::int64_t{1} << 31),
                  Format,
                  fmt::format("{}: its args have no {}", first().path.string(), key),
                  "expected a checkpoint of Megatron-LM's GPTModel");
  return *value;
}

bool Reader::flag(const char* key) const {
  const json::Value* found = argument(key);
  return found != nullptr && found->is_bool() && found->as_bool();
}

bool Reader::has_number(const char* key) const {
  const json::Value* found = argument(key);
  return found != nullptr && found->is_number();
}

bool Reader::is_another(const char* key, const char* word) const {
  const json::Value* found = argument(key);
  return found != nullptr && found->is_string() && found->as_string() != word;
}

/// The number of layers of a stage, which counts its own layers from 0.
std::int64_t Reader::layers_in(StageOf at, const std::string& root) const {
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

/// Stages may have different numbers of layers: the first and last may have fewer.
void Reader::read_layers() {
  for (const Stack& stack : stacks()) {
    std::int64_t layers = 0;
    Held held;
    for (const StageOf at : stages()) {
      std::string root;
      for (const char* name : stack.roots) {
        if (layers_in(at, name) > 0) root = name;
      }
      held.roots.push_back(root);
      held.counts.push_back(root.empty() ? 0 : layers_in(at, root));
      layers += held.counts.back();
    }
    TESSERA_REQUIRE(layers > 0,
                    Unsupported,
                    fmt::format("{}: has no layers under names that are known, such as {}0",
                                first().path.string(),
                                *stack.roots.begin()),
                    "expected a model that Megatron-LM saved with --ckpt-format torch");
    TESSERA_REQUIRE(layers == stack.layers,
                    Format,
                    fmt::format("{}: its stages hold {} layers, and its args say {}",
                                folder_.string(),
                                layers,
                                stack.layers),
                    kCopy);
    held_.push_back(std::move(held));
  }
}

/// The table is padded so that it divides evenly. If the arguments contain the true size (for a
/// tokenizer they only have its file name), the padding is removed; else it is kept, because it was
/// trained like all rows.
void Reader::read_vocabulary() {
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
  // If Megatron's rounding does not give the padded size, the number means something else.
  knows_vocab_ = truth <= padded_ && (padded_ - truth) / tensor_ < multiple;
  if (knows_vocab_) vocab_ = truth;
}

std::string Reader::vocabulary_said() const {
  if (!knows_vocab_) return fmt::format(", {} token rows with any padding", padded_);
  return vocab_ < padded_ ? fmt::format(", {} of its {} token rows", vocab_, padded_) : "";
}

const Weight& Reader::tensor(int t, StageOf at, const std::string& name, const Shape& shape) const {
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

void Reader::add_rows_of_vocabulary(StageOf at,
                                    Candidates theirs,
                                    const std::string& name,
                                    bool numbers) {
  const std::int64_t rows = padded_ / tensor_;
  const auto shape = [&](std::int64_t count) {
    return numbers ? Shape{count} : Shape{count, width_};
  };
  std::vector<Weight> parts;
  for (int t = 0; t < tensor_; ++t) {
    Weight part = tensor(t, at, named(weights(at), "", theirs), shape(rows));
    part.shape[0] = std::clamp<std::int64_t>(vocab_ - t * rows, 0, rows);
    if (part.shape[0] > 0) parts.push_back(std::move(part));
  }
  made_.push_back(
      concatenate(name, shape(vocab_), 0, std::move(parts), shape(vocab_), path_.string()));
}

void Reader::add_zeros(const std::string& name, const Shape& shape) {
  made_.push_back({.name = name,
                   .dtype = DType::F32,
                   .shape = shape,
                   .read = [](std::int64_t begin, std::int64_t end, std::byte* out) {
                     std::memset(out, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
                   }});
}

void Reader::read_learned_sizes() {
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

const char* Reader::learned_activation() const {
  return flag("openai_gelu") ? "gelu_new" : flag("bias_gelu_fusion") ? "gelu_fast" : "gelu";
}

void Reader::read_state() {
  for (const std::string& moment : first().moments)
    out_.state.emplace(moment, assembled(moment));
  if (first().updates && *first().updates <= out_.step) out_.skipped = out_.step - *first().updates;
  out_.lr = first().lr;
  out_.loss_scaler = first().loss_scaler;
  describe_optimizer();
}

// Megatron's Adam is apex's, with decoupled weight decay.
void Reader::describe_optimizer() {
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

}  // namespace tessera::interop::megatron

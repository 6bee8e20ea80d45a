// SPDX-License-Identifier: Apache-2.0
// Reads the files that bmtrain.save writes for ModelCenter's models: a state_dict with
// ModelCenter's names, and a config.json next to it. Families declare their names
// (models/modelcenter_names.h); a GPT2, whose matrices are transposed and whose projections are
// joined, is read here.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/torch/file.h"
#include "tessera/models/gpt_names.h"
#include "tessera/models/modelcenter_names.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

constexpr const char* kProjectQ = ".layers.0.self_att.self_attention.project_q.weight";

std::optional<fs::path> find_file(const fs::path& path) {
  std::error_code failed;
  const fs::path file = fs::is_directory(path, failed) ? path / "pytorch_model.pt" : path;
  if (!fs::is_regular_file(file, failed)) return std::nullopt;
  if (file.extension() != ".pt" && file.extension() != ".pth") return std::nullopt;
  return file;
}

/// The length of the prefix of a module that holds the model, such as "t5.", if a name is that of
/// a projection that every model has; nothing for other names.
std::optional<std::size_t> prefix_of(std::string_view name) {
  for (const char* const stack : {"encoder", "decoder"}) {
    const std::string ending = std::string(stack) + kProjectQ;
    if (!name.ends_with(ending)) continue;
    const std::size_t length = name.size() - ending.size();
    if (length == 0 || name[length - 1] == '.') return length;
  }
  return std::nullopt;
}

/// The tensors of a file. If a program kept its model as a member of a module of its own, the
/// names of all tensors of the model lose that member's.
std::vector<Weight> tensors_of(const fs::path& file) {
  std::vector<Weight> out = open_torch_file(file);
  std::optional<std::string> prefix;
  for (const Weight& weight : out) {
    const auto length = prefix_of(weight.name);
    if (length && (!prefix || *length < prefix->size())) prefix = weight.name.substr(0, *length);
  }
  if (!prefix || prefix->empty()) return out;
  for (Weight& weight : out)
    if (weight.name.starts_with(*prefix)) weight.name.erase(0, prefix->size());
  return out;
}

bool recognises(const fs::path& path) {
  try {
    const auto file = find_file(path);
    if (!file) return false;
    const Named tensors(tensors_of(*file));
    return tensors.has(std::string("encoder") + kProjectQ) ||
           tensors.has(std::string("decoder") + kProjectQ);
  } catch (const std::exception&) {
    return false;  // the reader of that format reports the error
  }
}

/// ModelCenter's config.json, which has its own keys.
json::Value their_config(const fs::path& file) {
  const fs::path path = file.parent_path() / "config.json";
  TESSERA_REQUIRE(
      fs::is_regular_file(path),
      Format,
      fmt::format("{}: no config.json next to it says how many heads the model has", file.string()),
      "put ModelCenter's config.json of the model there");
  return json::parse_strict(files::read(path), path.string());
}

bool is(const json::Value& config, const char* key, bool wanted) {
  const json::Value* found = at_path(config, key);
  return found != nullptr && found->is_bool() && found->as_bool() == wanted;
}
std::string word(const json::Value& config, const char* key, const char* absent) {
  const json::Value* found = at_path(config, key);
  return found != nullptr && found->is_string() ? found->as_string() : absent;
}

/// ModelCenter's models share most names; other architectures are recognized by their special
/// names.
void refuse_others(const fs::path& file, const json::Value& config, const Named& tensors) {
  const auto refuse = [&](bool bad, const std::string& what) {
    TESSERA_REQUIRE(!bad,
                    Unsupported,
                    fmt::format("{}: {}, which is not a GPT2 of ModelCenter", file.string(), what),
                    "only models of GPT-2's kind are read from this format");
  };
  for (const Weight& weight : tensors.all()) {
    refuse(weight.name.find("relative_attention_bias") != std::string::npos,
           "its positions are a bias of its attention (relative_attention_bias)");
    refuse(weight.name.starts_with("decoder."), "it is an encoder-decoder model");
    refuse(weight.name.find(".w_in.w_0.") != std::string::npos, "its MLP is gated");
    refuse(weight.name.starts_with("token_type_embedding."), "it has types of tokens");
    refuse(weight.name.starts_with("block_position_embedding."), "it has positions of blocks");
  }
  refuse(!tensors.has("position_embedding.weight"), "it has no table of positions");
  refuse(word(config, "pos_bias_type", "none") != "none",
         fmt::format("its pos_bias_type is {}", word(config, "pos_bias_type", "none")));
  refuse(is(config, "length_scale", true), "it scales by lengths (length_scale)");
  refuse(is(config, "attn_scale", false), "it does not scale its attention (attn_scale)");
  refuse(is(config, "post_layer_norm", true), "its norms follow the residual (post_layer_norm)");
  const std::string activation = word(config, "ffn_activate_fn", "gelu");
  // The first two rows of OPT's position table are unused.
  refuse(activation == "relu", "its activation is OPT's, relu");
  refuse(activation != "gelu" && activation != "gelu_new",
         fmt::format("its activation is {}", activation));
  refuse(tensors.has("output_projection.bias"), "its head has a bias");
}

/// The sizes of the model: heads from config.json, the rest from shapes.
json::Value facts_of(const fs::path& file, const json::Value& theirs, const Named& tensors) {
  const std::int64_t heads = integer_at(theirs, "num_heads", integer_at(theirs, "n_head", 0));
  TESSERA_REQUIRE(
      heads > 0,
      Format,
      fmt::format("{}: has no num_heads", (file.parent_path() / "config.json").string()),
      "fetch it again");
  const auto size = [&](const char* name, std::size_t dim) {
    const Weight* found = tensors.find(name);
    TESSERA_REQUIRE(found != nullptr && found->shape.size() > dim,
                    Format,
                    fmt::format("{}: has no tensor {}", file.string(), name),
                    "expected a GPT2 of ModelCenter");
    return json::Value::integer(found->shape[dim]);
  };
  std::int64_t layers = 0;
  while (tensors.has(fmt::format("encoder.layers.{}.ffn.ffn.w_out.weight", layers)))
    ++layers;
  const json::Value* eps = at_path(theirs, "norm_eps");
  if (eps == nullptr) eps = at_path(theirs, "layernorm_eps");
  json::Value out = json::Value::object(
      {{"vocab_size", size("input_embedding.weight", 0)},
       {"max_positions", size("position_embedding.weight", 0)},
       {"hidden_size", size("input_embedding.weight", 1)},
       {"ffn_hidden_size", size("encoder.layers.0.ffn.ffn.w_in.w.weight", 0)},
       {"num_layers", json::Value::integer(layers)},
       {"num_heads", json::Value::integer(heads)},
       {"activation", json::Value::string(word(theirs, "ffn_activate_fn", "gelu"))},
       {"norm_eps", eps != nullptr && eps->is_number() ? *eps : json::Value::number(1e-5)}});
  // A tied model has no output_projection of its own.
  if (is(theirs, "tied", false) ||
      (at_path(theirs, "tied") == nullptr && tensors.has("output_projection.weight")))
    out["tie_embeddings"] = json::Value::boolean(false);
  return out;
}

Foreign read_rearranged(const fs::path& file,
                        const std::vector<Weight>& weights,
                        const json::Value& config) {
  refuse_others(file, config, Named(weights));
  Foreign out;
  const json::Value facts = facts_of(file, config, Named(weights));
  const models::GptNames& names = models::names_of_gpt(file.string());
  out.model_config = names.config_of(facts);
  out.what = "a GPT2 of ModelCenter, as bmtrain.save writes it";
  out.path = file;
  out.files = 1;
  const auto size = [&](const char* key) { return integer_at(facts, key, 0); };
  const std::int64_t width = size("hidden_size"), inner = size("ffn_hidden_size");
  ConsumedWeights consumed(weights, file.string());
  const auto plain = [&](const std::string& theirs,
                         const std::string& name,
                         const std::vector<std::int64_t>& shape) {
    out.weights.push_back(stream(consumed.take(theirs, shape), name));
  };
  const auto matrix =
      [&](const std::string& theirs, const std::string& name, std::int64_t to, std::int64_t from) {
        out.weights.push_back(
            stream(transposed(consumed.take(theirs + ".weight", {to, from})), name + ".weight"));
        plain(theirs + ".bias", name + ".bias", {to});
      };
  plain("input_embedding.weight", names.table, {size("vocab_size"), width});
  if (at_path(facts, "tie_embeddings") == nullptr) {
    out.weights.back().aliases = {names.head};
    consumed.ignore("output_projection.weight");
  } else {
    out.weights.push_back(
        stream(consumed.take("output_projection.weight", {size("vocab_size"), width}), names.head));
  }
  plain("position_embedding.weight", names.positions, {size("max_positions"), width});
  for (std::int64_t i = 0; i < size("num_layers"); ++i) {
    const std::string theirs = fmt::format("encoder.layers.{}.", i);
    const auto ours = [&](const std::string& module) { return names.in_layer(i, module); };
    const std::string attention = theirs + "self_att.self_attention.";
    for (const char* part : {"weight", "bias"}) {
      const std::string behind = std::string(".") + part;
      plain(theirs + "self_att.layernorm_before_attention" + behind,
            ours(names.attention_norm) + behind,
            {width});
      plain(theirs + "ffn.layernorm_before_ffn" + behind, ours(names.mlp_norm) + behind, {width});
    }
    std::vector<Weight> projections, biases;
    for (const char* part : {"project_q", "project_k", "project_v"}) {
      projections.push_back(
          transposed(consumed.take(attention + part + ".weight", {width, width})));
      biases.push_back(consumed.take(attention + part + ".bias", {width}));
    }
    out.weights.push_back(concatenate(ours(names.attention_input) + ".weight",
                                      {width, 3 * width},
                                      1,
                                      std::move(projections),
                                      {width, 3 * width},
                                      file.string()));
    out.weights.push_back(concatenate(ours(names.attention_input) + ".bias",
                                      {3 * width},
                                      0,
                                      std::move(biases),
                                      {3 * width},
                                      file.string()));
    matrix(attention + "attention_out", ours(names.attention_output), width, width);
    matrix(theirs + "ffn.ffn.w_in.w", ours(names.mlp_input), inner, width);
    matrix(theirs + "ffn.ffn.w_out", ours(names.mlp_output), width, inner);
  }
  for (const char* part : {"weight", "bias"})
    plain(std::string("encoder.output_layernorm.") + part, names.final_norm + "." + part, {width});
  consumed.finish();
  return out;
}

/// The family that claims the file; nullptr if none does.
const models::ModelCenterModel* claimed_by(const json::Value& config, const Named& tensors) {
  const models::ModelCenterFile file = {
      config, [&tensors](std::string_view name) { return tensors.has(std::string(name)); }};
  const auto& registry = models::modelcenter_models();
  for (const std::string& name : registry.names()) {
    const models::ModelCenterModel& model = registry.get(name);
    if (model.is_of(file)) return &model;
  }
  return nullptr;
}

/// Refuses a key of the configuration with which the family would compute something else.
void require_computes(const fs::path& file,
                      const json::Value& config,
                      const models::ModelCenterModel& model) {
  for (const auto& [key, wanted] : model.computes) {
    const json::Value* found = at_path(config, key);
    TESSERA_REQUIRE(found == nullptr || found->is_null() || found->dump() == wanted.dump(),
                    Unsupported,
                    fmt::format("{}: {} is {}, and a {} is read with {}",
                                (file.parent_path() / "config.json").string(),
                                key,
                                found->dump(),
                                model.class_name,
                                wanted.dump()),
                    "models of this kind are not read from ModelCenter's files");
  }
}

/// The facts of models::ModelCenterModel::config_of, from the shapes and the configuration.
json::Value family_facts(const fs::path& file,
                         const json::Value& config,
                         const Named& tensors,
                         const std::string& head) {
  const std::string stack =
      tensors.has(std::string("encoder") + kProjectQ) ? "encoder.layers." : "decoder.layers.";
  const std::string ffn = stack + "0.ffn.ffn.w_in.";
  const auto rows = [&](const std::string& name) -> std::int64_t {
    const Weight* found = tensors.find(name);
    return found == nullptr || found->shape.size() != 2 ? 0 : found->shape[0];
  };
  const Weight* table = tensors.find("input_embedding.weight");
  TESSERA_REQUIRE(table != nullptr && table->shape.size() == 2,
                  Format,
                  fmt::format("{}: has no matrix input_embedding.weight", file.string()),
                  "copy the file again: it is damaged or incomplete");
  const std::int64_t heads = integer_at(config, "num_heads", 0);
  const std::int64_t head_dim =
      heads > 0 ? rows(stack + "0.self_att.self_attention.project_q.weight") / heads : 0;
  TESSERA_REQUIRE(heads > 0 && head_dim > 0,
                  Format,
                  fmt::format("{}: num_heads {} does not fit the projections of {}",
                              (file.parent_path() / "config.json").string(),
                              heads,
                              file.string()),
                  "put ModelCenter's config.json of the model there");
  const std::int64_t key_rows = rows(stack + "0.self_att.self_attention.project_k.weight");
  std::int64_t layers = 0;
  while (tensors.has(fmt::format("{}{}.ffn.ffn.w_out.weight", stack, layers)))
    ++layers;
  std::string activation = word(config, "ffn_activate_fn", "gelu");
  if (activation.starts_with("gated_")) activation.erase(0, 6);
  const json::Value* eps = at_path(config, "norm_eps");
  const json::Value* tied = at_path(config, "tied");
  const auto number = [](std::int64_t value) { return json::Value::integer(value); };
  return json::Value::object(
      {{"vocab_size", number(table->shape[0])},
       {"hidden_size", number(table->shape[1])},
       {"ffn_hidden_size", number(std::max(rows(ffn + "w.weight"), rows(ffn + "w_0.weight")))},
       {"num_layers", number(layers)},
       {"num_heads", number(heads)},
       {"num_kv_heads", number(key_rows / head_dim)},
       {"head_dim", number(head_dim)},
       {"max_positions", number(rows("position_embedding.weight"))},
       {"type_vocab_size", number(rows("token_type_embedding.weight"))},
       {"activation", json::Value::string(activation)},
       {"norm_eps", eps != nullptr && eps->is_number() ? *eps : json::Value::number(1e-5)},
       {"tie_embeddings",
        json::Value::boolean(tied != nullptr && tied->is_bool() ? tied->as_bool()
                                                                : !tensors.has(head))}});
}

/// Reads a model whose tensors differ only in their names.
Foreign read_named(const fs::path& file,
                   const std::vector<Weight>& weights,
                   const json::Value& config,
                   const models::ModelCenterModel& model) {
  require_computes(file, config, model);
  const Named tensors(weights);
  const json::Value facts = family_facts(file, config, tensors, model.head);
  Foreign out;
  out.model_config = model.config_of(facts, config);
  out.what = fmt::format("a {} of ModelCenter, as bmtrain.save writes it", model.class_name);
  out.path = file;
  out.files = 1;
  std::map<std::string, std::string> known;
  for (const auto& [theirs, ours] : model.names(*facts.find("num_layers")->as_integer())) {
    known.emplace(theirs, ours);
    for (const char* part : {".weight", ".bias"})
      known.emplace(theirs + part, ours + part);
  }
  const bool tied = facts.find("tie_embeddings")->as_bool();
  for (const Weight& weight : weights) {
    // A tied model computes with the token table, whatever is stored here.
    if (tied && weight.name == model.head) continue;
    const auto name = known.find(weight.name);
    TESSERA_REQUIRE(name != known.end(),
                    Unsupported,
                    fmt::format("{}: tensor {} does not belong to a {}",
                                file.string(),
                                checkpoint::JsonCursor::shown(weight.name),
                                model.class_name),
                    "models of this kind are not read from ModelCenter's files");
    out.weights.push_back(stream(weight, name->second));
  }
  return out;
}

Foreign open(const fs::path& path) {
  const fs::path file = *find_file(path);
  const auto weights = tensors_of(file);
  const json::Value config = their_config(file);
  const models::ModelCenterModel* model = claimed_by(config, Named(weights));
  return model == nullptr ? read_rearranged(file, weights, config)
                          : read_named(file, weights, config, *model);
}

TESSERA_FOREIGN_FORMAT("modelcenter", (ForeignFormat{recognises, open}));

}  // namespace
}  // namespace tessera::interop

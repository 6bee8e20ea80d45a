// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/tencentpretrain/model_rules.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <xxhash.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/interop/huggingface/trainer_rules.h"
#include "tessera/interop/torch/file.h"

namespace tessera::interop::tencentpretrain {
namespace {

namespace fs = std::filesystem;
using Setting = ForeignFlags::Setting;

// A hidden_act of TencentPretrain, and its name here.
constexpr auto kActivations = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"gelu", "gelu"}, {"gelu_fast", "gelu_tanh"}, {"relu", "relu"}, {"silu", "silu"}});

json::Value word_value(std::string_view word) {
  return json::Value::string(std::string(word));
}

json::Value list_of(const std::vector<std::string>& words) {
  json::Value out = json::Value::array();
  for (const std::string& word : words)
    out.push_back(word_value(word));
  return out;
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// The file of the tokenizer; refuses one that does not exist.
const Setting* vocabulary_of(Meaning& meaning) {
  const Setting* file = meaning.given("@spm");
  if (file == nullptr) file = meaning.given("@vocab");
  if (file == nullptr) {
    meaning.refuse(fmt::format("{} without a vocabulary", meaning.program),
                   "add --vocab_path or --spm_model_path");
  } else if (!is_file(file->value.as_string())) {
    meaning.refuse(fmt::format("{} {}: there is no such file", file->flag, file->value.as_string()),
                   "name a vocabulary on this machine");
    return nullptr;
  }
  return file;
}

std::int64_t lines_of(const std::string& path) {
  const std::string text = files::read(path);
  const auto ends = std::ranges::count(text, '\n');
  return ends + (text.empty() || text.back() == '\n' ? 0 : 1);
}

// vocab.txt is read in lower case unless a file next to it says otherwise.
void check_case(Meaning& meaning, const std::string& vocabulary) {
  if (text::lower(meaning.text("@lower", "true")) != "false") return;
  const fs::path settings = fs::path(vocabulary).parent_path() / "tokenizer_config.json";
  try {
    const json::Value value = json::parse_strict(files::read(settings), settings.string());
    const json::Value* const lower = value.is_object() ? value.find("do_lower_case") : nullptr;
    if (lower != nullptr && lower->is_bool() && !lower->as_bool()) return;
  } catch (const Error&) {
    // refused below
  }
  meaning.refuse(fmt::format("{} false", meaning.find("@lower")->flag),
                 fmt::format("write {{\"do_lower_case\": false}} into {}", settings.string()));
}

std::vector<std::string> targets_of(const Meaning& meaning, std::string_view target) {
  if (!target.empty()) return {std::string(target)};
  return meaning.texts("@target");
}

std::string mask_of(const Meaning& meaning) {
  const std::string mask = meaning.text("@mask", "fully_visible");
  return mask == "fully_visible" || mask == "causal" ? mask : "causal_with_prefix";
}

// Checks keys that depend on each other, for a new model and for a file of weights.
void check_parts(Meaning& meaning) {
  const Setting* const width = meaning.find("@emb_size");
  const auto hidden = meaning.number("model.hidden_size");
  if (!hidden) {
    meaning.refuse(fmt::format("{} without the configuration of a model", meaning.program),
                   "add --config_path with a file of TencentPretrain's folder models/");
    return;
  }
  if (width != nullptr && width->value.as_double() != *hidden)
    meaning.refuse(fmt::format("{} differs from hidden_size", width->flag),
                   "a table of another width is not built");
  const std::string pooling = meaning.text("@pooling", "first");
  const std::string built = mask_of(meaning) == "fully_visible" ? "first" : "last";
  const Setting* const pooled = meaning.given("@pooling");
  if (pooled != nullptr && pooling != built)
    meaning.refuse(fmt::format("{} {} is not built for this mask", pooled->flag, pooling),
                   fmt::format("use {}", built));
  if (meaning.is_on("@relative") && meaning.is_on("@rotary"))
    meaning.refuse("relative and rotary positions at once", "keep one of them");
  if (meaning.text("model.decoder").empty()) return;
  if (meaning.texts("@embedding") != meaning.texts("@tgt_embedding"))
    meaning.refuse("tgt_embedding differs from embedding", "give both the same parts");
  if (!meaning.is_on("@share_embedding"))
    meaning.refuse("a decoder with a word table of its own is not built", "add --share_embedding");
}

// The keys of the configuration as TencentPretrain writes them, for a folder of weights.
json::Value written(const Meaning& meaning, std::string_view target, std::int64_t vocabulary) {
  json::Value out = json::Value::object({{"model_type", word_value("compose")},
                                         {"vocab_size", json::Value::integer(vocabulary)},
                                         {"embedding", list_of(meaning.texts("@embedding"))},
                                         {"mask", word_value(mask_of(meaning))},
                                         {"target", list_of(targets_of(meaning, target))}});
  const auto copy = [&](std::string_view from, const char* name) {
    const Setting* const setting = meaning.find(from);
    if (setting != nullptr) out[name] = setting->value;
  };
  const auto negated = [&](std::string_view from, const char* name) {
    const Setting* const setting = meaning.find(from);
    if (setting != nullptr) out[name] = json::Value::boolean(!setting->value.as_bool());
  };
  copy("model.hidden_size", "emb_size");
  copy("model.hidden_size", "hidden_size");
  copy("model.ffn_hidden_size", "feedforward_size");
  copy("model.num_heads", "heads_num");
  copy("model.num_layers", "layers_num");
  copy("model.head_dim", "attention_head_size");
  copy("model.max_positions", "max_seq_length");
  copy("@activation", "hidden_act");
  copy("model.dropout", "dropout");
  copy("model.encoder", "encoder");
  copy("model.norm_position", "layernorm_positioning");
  copy("@norm", "layernorm");
  copy("model.norm_eps", "layernorm_eps");
  copy("model.feed_forward", "feed_forward");
  copy("@relative", "relative_position_embedding");
  copy("@buckets", "relative_attention_buckets_num");
  copy("@rotary", "rotary_position_embedding");
  copy("@rope_theta", "rope_theta");
  copy("model.tie_embeddings", "tie_weights");
  copy("@lm_bias", "has_lmtarget_bias");
  negated("model.embedding_norm", "remove_embedding_layernorm");
  negated("model.bias", "remove_transformer_bias");
  negated("model.scale_attention", "remove_attention_scale");
  if (meaning.text("model.decoder").empty()) return out;
  copy("model.decoder", "decoder");
  copy("model.num_decoder_layers", "decoder_layers_num");
  copy("@share_embedding", "share_embedding");
  out["tgt_embedding"] = list_of(meaning.texts("@tgt_embedding"));
  return out;
}

void link(const fs::path& from, const fs::path& to) {
  std::error_code failed;
  fs::remove(to, failed);
  fs::create_symlink(fs::absolute(from), to, failed);
  TESSERA_REQUIRE(!failed,
                  Io,
                  fmt::format("{} cannot be linked: {}", to.string(), failed.message()),
                  "set TESSERA_CACHE to a folder that is writable");
}

std::string write_folder(Meaning& meaning,
                         const std::string& weights,
                         std::string_view target,
                         std::int64_t classes) {
  std::int64_t vocabulary = 0;
  for (const Weight& weight : open_torch_file(weights)) {
    if (weight.name.ends_with("embedding.word.embedding.weight") && weight.shape.size() == 2)
      vocabulary = weight.shape.front();
  }
  TESSERA_REQUIRE(vocabulary > 0,
                  Format,
                  fmt::format("{} has no tensor embedding.word.embedding.weight", weights),
                  "name a file of TencentPretrain's weights");
  json::Value config = written(meaning, target, vocabulary);
  if (classes > 0) {
    config["architectures"] = list_of({"ComposeForSequenceClassification"});
    config["num_labels"] = json::Value::integer(classes);
  }
  const Setting* tokenizer = meaning.given("@spm");
  if (tokenizer == nullptr) tokenizer = meaning.given("@vocab");
  const std::string vocab = tokenizer == nullptr ? "" : tokenizer->value.as_string();
  const std::string text = config.dump(2) + "\n";
  // absolute() refuses an empty path.
  const std::string beside = vocab.empty() ? "" : fs::absolute(vocab).string();
  const std::string key = text + fs::absolute(weights).string() + "\n" + beside;
  const fs::path folder = files::cache_dir() / "tencentpretrain" /
                          fmt::format("{:016x}", XXH3_64bits(key.data(), key.size()));
  std::error_code failed;
  fs::create_directories(folder, failed);
  link(weights, folder / "pytorch_model.bin");
  if (!vocab.empty() && is_file(vocab))
    link(vocab, folder / (vocab.ends_with(".model") ? "tokenizer.model" : "vocab.txt"));
  files::write_atomic(folder / "config.json", text);
  return folder.string();
}

}  // namespace

void set_tokenizer(Meaning& meaning) {
  const std::string kind = meaning.text("@tokenizer", "bert");
  if (kind == "bpe") {
    const Setting *const vocab = meaning.given("@vocab"), *const merges = meaning.given("@merges");
    if (vocab == nullptr || merges == nullptr) {
      meaning.refuse("--tokenizer bpe without its files", "add --vocab_path and --merges_path");
      return;
    }
    meaning.set("tokenizer.type", word_value("gpt2"), meaning.find("@tokenizer"));
    meaning.copy("tokenizer.vocab", vocab);
    meaning.copy("tokenizer.merges", merges);
    return;
  }
  if (kind == "hfpretrained" && meaning.given("@vocab") != nullptr) {
    huggingface::set_tokenizer(meaning, *meaning.given("@vocab"));
    return;
  }
  if (kind != "bert") {
    meaning.refuse(fmt::format("{} {} is not built", meaning.find("@tokenizer")->flag, kind),
                   "use bert, bpe or hfpretrained, or learn one: tessera tokenizer train");
    return;
  }
  const Setting* const file = vocabulary_of(meaning);
  if (file == nullptr) return;
  check_case(meaning, file->value.as_string());
  meaning.set("tokenizer.type", word_value("file"), file);
  meaning.copy("tokenizer.vocab", file);
}

std::string model_folder(Meaning& meaning,
                         const Setting& weights,
                         std::string_view target,
                         std::int64_t classes) {
  std::string path = weights.value.as_string();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    // TencentPretrain saves OUTPUT-5000; a run keeps its checkpoints in its folder.
    const std::size_t dash = path.rfind('-');
    const bool steps = dash != path.npos && dash + 1 < path.size() &&
                       path.find_first_not_of("0123456789", dash + 1) == path.npos;
    if (steps && fs::is_directory(path.substr(0, dash), ignored)) {
      meaning.note(fmt::format("{} {}: the newest checkpoint of the run {} is read",
                               weights.flag,
                               path,
                               path.substr(0, dash)));
      path.resize(dash);
    }
  }
  if (fs::is_directory(path, ignored)) return path;
  if (!is_file(path)) {
    if (const auto named = hub::find_model(path)) return named->string();
    meaning.refuse(fmt::format("{} {}: there is no such model on this machine", weights.flag, path),
                   "name a run, a folder of Hugging Face, or a file of TencentPretrain's weights");
    return "";
  }
  check_parts(meaning);
  if (!meaning.problems.empty()) return "";
  if (meaning.text("@norm", "normal") == "normal")
    meaning.note(
        "TencentPretrain's norms divide by the unbiased deviation plus epsilon, and those of this "
        "model by the root of the variance plus epsilon: logits differ in the fourth digit");
  return write_folder(meaning, path, target, classes);
}

void set_model(Meaning& meaning, std::string_view target) {
  if (const Setting* const weights = meaning.given("@model")) {
    const std::string folder = model_folder(meaning, *weights, target, 0);
    const json::Value* const dropout = meaning.value("model.dropout");
    const json::Value kept = dropout == nullptr ? json::Value() : *dropout;
    const Setting* const from = meaning.find("model.dropout");
    meaning.drop("model");
    meaning.set("model.from", json::Value::string(folder), weights);
    if (!kept.is_null()) meaning.set("model.dropout", kept, from);
    return;
  }
  check_parts(meaning);
  if (!meaning.problems.empty()) return;
  meaning.set("model.family", word_value("compose"));
  meaning.set("model.embedding", list_of(meaning.texts("@embedding")), meaning.find("@embedding"));
  meaning.set("model.target", list_of(targets_of(meaning, target)), meaning.find("@target"));
  meaning.set("model.mask", word_value(mask_of(meaning)), meaning.find("@mask"));
  const Setting* const norm = meaning.find("@norm");
  meaning.set("model.norm",
              word_value(meaning.text("@norm", "normal") == "normal" ? "layer_norm" : "rms"),
              norm);
  if (meaning.value("model.embedding_norm") == nullptr)
    meaning.set("model.embedding_norm", json::Value::boolean(true));
  if (const Setting* const act = meaning.find("@activation")) {
    const std::string name = act->value.as_string();
    const auto found =
        std::ranges::find_if(kActivations, [&](const auto& one) { return one.first == name; });
    if (found == kActivations.end()) {
      meaning.refuse(fmt::format("{} {} is not built", act->flag, name),
                     "use gelu, gelu_fast, relu or silu");
    } else {
      meaning.set("model.activation", word_value(found->second), act);
    }
  }
  if (meaning.is_on("@relative")) {
    meaning.set("model.position", word_value("relative"), meaning.find("@relative"));
    meaning.copy("model.position_buckets", meaning.find("@buckets"));
  } else if (meaning.is_on("@rotary")) {
    meaning.set("model.position", word_value("rotary"), meaning.find("@rotary"));
    meaning.copy("model.rope_theta", meaning.find("@rope_theta"));
  }
  const std::vector<std::string> heads = targets_of(meaning, target);
  if (std::ranges::find(heads, "lm") != heads.end())
    meaning.copy("model.lm_bias", meaning.find("@lm_bias"));
  // A table has a row for each line of the vocabulary.
  const Setting* const vocab = meaning.given("@vocab");
  const bool lines = vocab != nullptr && meaning.given("@spm") == nullptr &&
                     meaning.text("@tokenizer", "bert") == "bert" &&
                     is_file(vocab->value.as_string());
  if (lines)
    meaning.set(
        "model.vocab_size", json::Value::integer(lines_of(vocab->value.as_string())), vocab);
}

}  // namespace tessera::interop::tencentpretrain

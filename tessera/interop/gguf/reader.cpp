// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/gguf/reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/gguf/config_place.h"
#include "tessera/interop/gguf/layout.h"
#include "tessera/interop/gguf/long_rope.h"
#include "tessera/interop/gguf/parts.h"
#include "tessera/interop/gguf/tokenizer.h"
#include "tessera/models/gguf_names.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using checkpoint::JsonCursor;
using checkpoint::StreamedTensor;

constexpr const char* kFactors = "rope_freqs.weight";

bool recognises(const fs::path& path) {
  std::error_code failed;
  return is_gguf(path) && fs::is_regular_file(path, failed);
}

/// Streams blocks from a mapped file, decoded piece by piece.
StreamedTensor decoded(const Weight& raw, const GgufTensor& tensor) {
  const auto read = [raw, type = tensor.type](
                        std::int64_t begin, std::int64_t end, std::byte* out) {
    constexpr std::int64_t kElements = 1 << 12;
    constexpr std::int64_t kReleased = 1 << 20;  // smaller parts stay until release()
    std::array<float, kElements> piece{};
    for (std::int64_t at = begin; at < end; at += kElements) {
      const std::int64_t count = std::min(kElements, end - at);
      decode_blocks(type, raw.data, at, at + count, piece.data());
      const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
      std::memcpy(out, piece.data(), bytes);
      out += bytes;
    }
    const GgmlBlock block = ggml_block(type);
    if (end - begin >= kReleased)
      raw.release(begin / block.elements * block.bytes, end / block.elements * block.bytes);
  };
  return {tensor.name, DType::F32, tensor.shape, read, {}, [raw] { raw.release(); }};
}

/// The model of a file under Hugging Face's names.
class Model {
 public:
  explicit Model(const fs::path& path)
      : file_(std::make_shared<const GgufFile>(path)),
        architecture_(file_->text("general.architecture").value_or("")),
        names_(names_of(*file_, architecture_)) {}

  Foreign read() {
    out_.what = fmt::format("a GGUF file ({}, {})", architecture_, gguf_types(*file_));
    out_.path = file_->path();
    out_.files = 1;
    refuse_parts();
    read_config();
    check_layers();
    read_rotary();
    if (names_.derived != nullptr) {
      for (const auto& [name, value] : names_.derived(out_.model_config))
        out_.model_config[name] = value;
    }
    refuse_other_keys();
    refuse_mixed_experts();
    for (const GgufTensor& tensor : file_->tensors())
      add(tensor);
    add_wholes();
    refuse_doubles();
    tie_head();
    add_token_ids(*file_, out_.model_config);
    out_.beside = gguf_tokenizer_files(*file_, integer("context_length"));
    return std::move(out_);
  }

 private:
  static const models::GgufNames& names_of(const GgufFile& file, const std::string& architecture) {
    const auto known = models::gguf_architectures();
    TESSERA_REQUIRE(std::ranges::find(known, architecture) != known.end(),
                    Unsupported,
                    fmt::format("{}: the architecture {} is not built",
                                file.path().string(),
                                JsonCursor::shown(architecture)),
                    fmt::format("architectures that are read: {}", text::join(known, ", ")));
    if (file.integer(architecture + ".expert_count").value_or(0) > 0) {
      for (const std::string& name : models::gguf_names().names()) {
        const models::GgufNames& names = models::gguf_names().get(name);
        const std::int64_t gating = file.integer(architecture + ".expert_gating_func").value_or(1);
        if (names.stored_as == architecture && !names.stacked.empty() &&
            names.gating.value_or(gating) == gating)
          return names;
      }
    }
    if (file.integer(fmt::format("{}.{}", architecture, models::kGgufWindow)).value_or(0) > 0) {
      for (const std::string& name : models::gguf_names().names()) {
        const models::GgufNames& names = models::gguf_names().get(name);
        if (names.stored_as == architecture && has_window(names) && names.stacked.empty())
          return names;
      }
    }
    return models::gguf_names().get(architecture);
  }
  static bool has_window(const models::GgufNames& names) {
    return std::ranges::any_of(names.keys,
                               [](const auto& entry) { return entry.gguf == models::kGgufWindow; });
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(Error::Kind::Unsupported,
                fmt::format("{}: {}", file_->path().string(), what),
                "take the model from its Hugging Face folder, or another model");
  }
  [[nodiscard]] std::string key(const std::string& name) const {
    return architecture_ + "." + name;
  }
  std::optional<std::int64_t> integer(const std::string& name) {
    known_.insert(key(name));
    return file_->integer(key(name));
  }
  std::optional<double> number(const std::string& name) {
    known_.insert(key(name));
    return file_->number(key(name));
  }

  void refuse_parts() const {
    if (file_->integer("split.count").value_or(1) > 1)
      throw Error(Error::Kind::Unsupported,
                  fmt::format("{}: is one of several parts", file_->path().string()),
                  "merge them into one first: gguf-split --merge");
  }

  void read_config() {
    json::Value& config = out_.model_config;
    config = json::Value::object(
        {{"architectures", json::Value::array({json::Value::string(names_.architecture)})},
         {"model_type", json::Value::string(names_.model_type)}});
    for (const auto& entry : names_.keys) {
      const auto value = entry.real ? number(entry.gguf) : std::nullopt;
      const auto count = entry.real ? std::nullopt : one_count(entry.gguf);
      const bool off = count == 0 && !entry.required;
      if (entry.otherwise && (off || (!value && !count))) {
        config_place(config, entry.config) = *entry.otherwise;
        continue;
      }
      if (!value && !count) {
        if (entry.required) file_->refuse(fmt::format("has no {}", key(entry.gguf)));
        continue;
      }
      if (entry.config.empty() || off) continue;
      config_place(config, entry.config) =
          value ? json::Value::number(*value) : json::Value::integer(*count);
    }
    // If absent, the number of channels of a head follows from the width; for config.json the
    // family decides.
    const bool sized = std::ranges::any_of(
        names_.keys, [](const auto& entry) { return entry.config == "head_dim"; });
    if (sized && config.find("head_dim") == nullptr)
      config["head_dim"] = json::Value::integer(head_channels());
    for (const auto& [name, flag] : names_.switches) {
      known_.insert(key(name));
      // An absent flag is off in the programs that these files are for.
      config[flag] = json::Value::boolean(file_->flag(key(name)).value_or(false));
    }
    for (const auto& [name, value] : names_.implied)
      config_place(config, name) = value;
    for (const auto& [name, only] : names_.fixed_flags) {
      known_.insert(key(name));
      if (file_->flag(key(name)).value_or(only) != only)
        unsupported(fmt::format("{} is {}", key(name), !only));
    }
    for (const auto& [name, only] : names_.constants) {
      const std::int64_t said = integer(name).value_or(only);
      if (said != only) unsupported(fmt::format("{} is {}", key(name), said));
    }
    for (const auto& [name, only] : names_.real_constants) {
      const double said = number(name).value_or(only);
      if (static_cast<float>(said) != static_cast<float>(only))
        unsupported(fmt::format("{} is {}", key(name), said));
    }
    if (names_.from_counts != nullptr) {
      const auto count = [this](const std::string& name, bool may_be_absent) {
        const auto said = integer(name);
        if (!said && !may_be_absent) file_->refuse(fmt::format("has no {}", key(name)));
        return said.value_or(0);
      };
      for (const auto& [name, value] : names_.from_counts(count))
        config[name] = value;
    }
    for (const models::GgufNames::Rows& rows : names_.rows) {
      const GgufTensor* const table = file_->tensor(rows.tensor);
      if (table == nullptr || table->shape.size() != 2)
        file_->refuse(fmt::format("has no table {}", rows.tensor));
      config[rows.config] = json::Value::integer(table->shape[0]);
    }
    for (const std::string& name : names_.unread)
      known_.insert(key(name));
    for (const auto& [tensor, flag] : names_.flags)
      config[flag] = json::Value::boolean(file_->tensor(tensor) != nullptr);
    const GgufTensor* table = file_->tensor("token_embd.weight");
    if (table == nullptr || table->shape.size() != 2) file_->refuse("has no table of tokens");
    check_vocabulary(table->shape[0]);
    config["vocab_size"] = json::Value::integer(table->shape[0]);
    config["torch_dtype"] = json::Value::string(
        table->type == GgmlType::BF16 ? "bfloat16"
                                      : (table->type == GgmlType::F16 ? "float16" : "float32"));
  }

  /// The table decides. Converters may have cut rows that no token has, or added some.
  void check_vocabulary(std::int64_t rows) {
    const auto said = integer("vocab_size");
    if (said && (*said < 1 || *said > 2 * rows))
      file_->refuse(fmt::format(
          "{} is {}, and its table of tokens has {} rows", key("vocab_size"), *said, rows));
  }

  /// Refuses more layers than tensors, before lists with an entry for each layer are made.
  void check_layers() {
    const std::int64_t layers = one_count("block_count").value_or(0);
    if (layers < 0 || layers > std::ssize(file_->tensors()))
      file_->refuse(fmt::format(
          "says that it has {} layers, and has {} tensors", layers, file_->tensors().size()));
  }

  /// One number for all layers; a file may have one per layer.
  std::optional<std::int64_t> one_count(const std::string& name) {
    const GgufValue* value = file_->find(key(name));
    if (value == nullptr || !value->is_array()) return integer(name);
    known_.insert(key(name));
    for (std::uint64_t i = 0; i < value->count; ++i) {
      if (!value->integer(i) || value->integer(i) != value->integer(0))
        unsupported(fmt::format("{} differs from layer to layer", key(name)));
    }
    return value->integer(0);
  }

  [[nodiscard]] std::int64_t head_channels() {
    const auto own = integer("attention.key_length");
    const std::int64_t width = one_count("embedding_length").value_or(0),
                       heads = one_count("attention.head_count").value_or(0);
    if (heads < 1 || width < 1) file_->refuse("has no heads of attention");
    return own.value_or(width / heads);
  }

  void read_rotary() {
    const bool latent = !names_.rotary_channels.empty();
    const std::int64_t channels =
        latent ? integer("rope.dimension_count").value_or(0) : head_channels();
    if (!latent && integer("attention.value_length").value_or(channels) != channels)
      unsupported("its heads have values of another width than their keys");
    if (!names_.rotary) return;
    const std::int64_t turned = integer("rope.dimension_count").value_or(channels);
    if (latent) {
      // from_counts has read them
    } else if (!names_.rotary_share.empty()) {
      if (turned < 2 || turned > channels) file_->refuse("turns more channels than a head has");
      out_.model_config[names_.rotary_share] =
          json::Value::number(static_cast<double>(turned) / static_cast<double>(channels));
    } else if (turned != channels) {
      unsupported("rotary positions turn a part of each head only");
    }
    known_.insert(key("rope.scaling.original_context_length"));
    known_.insert(key("rope.scaling.finetuned"));
    known_.insert(key("rope.scaling.type"));
    const std::string kind = file_->text(key("rope.scaling.type")).value_or("none");
    const double factor = number("rope.scaling.factor").value_or(1);
    json::Value scaling;
    if (kind == "linear") {
      scaling = json::Value::object(
          {{"rope_type", json::Value::string("linear")}, {"factor", json::Value::number(factor)}});
    } else if (kind == "yarn" && names_.yarn) {
      scaling = read_yarn(factor);
    } else if (kind == "longrope" && names_.long_rope) {
      // The factors say the same.
    } else if (kind != "none") {
      unsupported(fmt::format("{} is {}", key("rope.scaling.type"), JsonCursor::shown(kind)));
    }
    if (const GgufTensor* stored = file_->tensor(kFactors)) {
      if (stored->shape != std::vector<std::int64_t>{channels / 2} || !scaling.is_null())
        file_->refuse("has factors of rotary frequencies that do not fit its heads");
      std::vector<float> factors(static_cast<std::size_t>(channels / 2));
      decode_blocks(stored->type, stored->data.data(), 0, channels / 2, factors.data());
      const double theta = number("rope.freq_base").value_or(10000);
      const std::string what = file_->path().string();
      scaling = written_rule(factors, theta, what);
      if (scaling.is_null()) scaling = rotary_scaling_of(factors, theta, what);
    }
    const bool has_long_rope = kind == "longrope" || file_->tensor(kLongFactors) != nullptr ||
                               file_->tensor(kShortFactors) != nullptr;
    if (names_.long_rope && has_long_rope) {
      if (!scaling.is_null()) file_->refuse("has factors of rotary frequencies in two ways");
      known_.insert(key("rope.scaling.attn_factor"));
      const LongRope rope = long_rope_in(*file_, turned / 2);
      scaling = config_of(rope, names_.long_rope->mscale, integer("context_length").value_or(0));
      // Hugging Face has it beside the scaling, too.
      out_.model_config["original_max_position_embeddings"] =
          json::Value::integer(rope.original_length);
    }
    if (!scaling.is_null()) out_.model_config["rope_scaling"] = scaling;
  }

  [[nodiscard]] json::Value read_yarn(double factor) {
    const std::string at = "rope.scaling.";
    const auto original = integer(at + "original_context_length");
    if (!original) file_->refuse(fmt::format("has no {}", key(at + "original_context_length")));
    for (const char* const name : {"yarn_ext_factor", "yarn_attn_factor", "attn_factor"}) {
      if (number(at + name).value_or(1) != 1)
        unsupported(fmt::format("has the key {} with another value than 1", key(at + name)));
    }
    json::Value out = json::Value::object(
        {{"rope_type", json::Value::string("yarn")},
         {"factor", json::Value::number(factor)},
         {"original_max_position_embeddings", json::Value::integer(*original)},
         {"beta_fast", json::Value::number(number(at + "yarn_beta_fast").value_or(32))},
         {"beta_slow", json::Value::number(number(at + "yarn_beta_slow").value_or(1))}});
    if (!names_.yarn->truncate) out["truncate"] = json::Value::boolean(false);
    if (!names_.yarn->log_multiplier) return out;
    // The file has a tenth of it in fp32.
    const double all = std::round(number(at + "yarn_log_multiplier").value_or(0) * 1e8) / 1e7;
    if (all > 0) {
      out["mscale"] = out["mscale_all_dim"] = json::Value::number(all);
    } else {
      out["attention_factor"] = json::Value::number(1);
    }
    return out;
  }

  /// The rule that tessera wrote in addition to the factors, if they are its factors; else null.
  /// Factors do not always show their rule: of a short table none may reach the largest.
  [[nodiscard]] json::Value written_rule(const std::vector<float>& factors,
                                         double theta,
                                         const std::string& what) const {
    const auto text = file_->text(kGgufRotaryRule);
    if (!text) return {};
    json::Value rule = json::parse_strict(std::string(*text), what);
    const auto channels = 2 * static_cast<std::int64_t>(factors.size());
    return rule.is_object() && same_factors(factors, rotary_factors(rule, theta, channels))
               ? rule
               : json::Value();
  }

  /// An unread key of the architecture may change what the model computes, unless it disables
  /// something.
  void refuse_other_keys() const {
    for (const auto& [name, value] : file_->values()) {
      if (!name.starts_with(architecture_ + ".") || known_.count(name) > 0) continue;
      const bool off = !value.is_array() && value.number() == 0.0;
      if (!off) unsupported(fmt::format("has the key {}, which is not supported", name));
    }
  }

  void add(const GgufTensor& tensor) {
    if (tensor.name == kFactors && names_.rotary) return;
    if (names_.long_rope && (tensor.name == kLongFactors || tensor.name == kShortFactors)) return;
    if (names_.expert_to_config_name(tensor.name, 0)) return add_experts(tensor);
    if (const auto part = names_.part_of(tensor.name)) {
      Whole& whole = wholes_[part->theirs];
      whole.parts = part->parts;
      whole.tensors.resize(part->parts->files.size());
      whole.tensors[part->index] = stream_gguf(*file_, tensor);
      return;
    }
    const auto name = names_.to_config_name(tensor.name);
    if (!name) unsupported(fmt::format("tensor {} is not known", JsonCursor::shown(tensor.name)));
    StreamedTensor one = stream_gguf(*file_, tensor);
    for (const auto& [module, count] : names_.rotated) {
      if (!models::is_of_module(tensor.name, module)) continue;
      const std::int64_t all = one_count("attention.head_count").value_or(0),
                         heads =
                             count == "attention.head_count" ? all : one_count(count).value_or(all);
      if (heads < 1 || heads > tensor.shape[0] || tensor.shape[0] % (2 * heads) != 0)
        file_->refuse(fmt::format("tensor {} has {} rows for {} heads",
                                  JsonCursor::shown(tensor.name),
                                  tensor.shape[0],
                                  heads));
      one = rotary_rows(one, heads, RotaryRows::Halves);
    }
    for (const std::string& module : names_.transposed) {
      if (tensor.shape.size() == 2 && models::is_of_module(tensor.name, module))
        one = exchanged(one);
    }
    for (const std::string& module : names_.by_part) {
      if (!models::is_of_module(tensor.name, module)) continue;
      const std::int64_t heads = one_count("attention.head_count").value_or(0);
      if (heads < 1 || heads > tensor.shape[0] || tensor.shape[0] % (3 * heads) != 0)
        file_->refuse(fmt::format("tensor {} has {} rows for queries, keys and values of {} heads",
                                  JsonCursor::shown(tensor.name),
                                  tensor.shape[0],
                                  heads));
      one = qkv_rows(one, heads, QkvRows::ByHead);
    }
    for (const std::string& module : names_.raised) {
      if (models::is_of_module(tensor.name, module)) one = shifted(one, -1.0F);
    }
    for (const std::string& module : names_.rows_of_one) {
      if (models::is_of_module(tensor.name, module) && one.shape.size() == 1)
        one.shape.insert(one.shape.begin(), 1);
    }
    one.name = *name;
    out_.weights.push_back(std::move(one));
  }

  /// Puts together the tensors that Hugging Face has in one.
  void add_wholes() {
    for (auto& [name, whole] : wholes_) {
      std::vector<StreamedTensor> tensors;
      for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
        if (!whole.tensors[i]) file_->refuse(fmt::format("has only a part of {}", name));
        tensors.push_back(std::move(*whole.tensors[i]));
      }
      const std::int64_t count = one_count(whole.parts->count).value_or(0);
      out_.weights.push_back(whole_of(std::move(tensors), *whole.parts, name, count));
    }
  }

  /// Files hold some tensors in one of two ways; this one must not hold both.
  void refuse_doubles() const {
    std::set<std::string_view> seen;
    for (const StreamedTensor& one : out_.weights) {
      if (!seen.insert(one.name).second)
        file_->refuse(fmt::format("holds {} in two ways", JsonCursor::shown(one.name)));
    }
  }

  /// "blk.3." and the rest of a tensor's name; empty for tensors outside of layers.
  static std::pair<std::string, std::string> of_layer(const std::string& name) {
    if (!name.starts_with("blk.")) return {};
    const std::size_t end = name.find('.', 4) + 1;
    return {name.substr(0, end), name.substr(end)};
  }

  /// Files hold the experts of a layer in one tensor for each projection, in no other way.
  void refuse_other_experts() const {
    for (const GgufTensor& tensor : file_->tensors()) {
      const auto [layer, module] = of_layer(tensor.name);
      const std::string shown = JsonCursor::shown(tensor.name);
      for (const std::string projection : {"ffn_gate", "ffn_up", "ffn_down"}) {
        const std::string rest =
            module.starts_with(projection + ".") ? module.substr(projection.size() + 1) : "";
        if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9')
          unsupported(
              fmt::format("tensor {} holds one expert, as old files do: files have those of "
                          "a layer in one tensor ({}{}_exps)",
                          shown,
                          layer,
                          projection));
      }
      if (module.starts_with("ffn_gate_up_exps"))
        unsupported(
            fmt::format("tensor {} holds two projections of the experts: files have one "
                        "tensor for each ({}ffn_gate_exps, {}ffn_up_exps)",
                        shown,
                        layer,
                        layer));
    }
  }

  /// A layer has a router and all projections of its experts, or none of them.
  void refuse_mixed_experts() const {
    refuse_other_experts();
    const std::array<std::string, 4> all = {
        "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    for (const GgufTensor& tensor : file_->tensors()) {
      const auto [layer, module] = of_layer(tensor.name);
      const std::string shown = JsonCursor::shown(tensor.name);
      if (std::ranges::none_of(
              all, [&module = module](const auto& one) { return module == one + ".weight"; }))
        continue;
      for (const std::string& other : all) {
        if (file_->tensor(layer + other + ".weight") == nullptr)
          file_->refuse(fmt::format("has {}, and no {}{}.weight", shown, layer, other));
      }
      for (const std::string dense : {"ffn_gate", "ffn_up", "ffn_down"}) {
        if (file_->tensor(layer + dense + ".weight") != nullptr)
          file_->refuse(fmt::format(
              "has a layer with experts ({}) and an MLP ({}{}.weight)", shown, layer, dense));
      }
    }
  }

  /// The experts of a layer become tensors of their own.
  void add_experts(const GgufTensor& tensor) {
    const std::int64_t count = one_count("expert_count").value_or(0);
    if (tensor.shape.size() < 2 || tensor.shape.front() != count)
      file_->refuse(fmt::format(
          "tensor {} is not a stack of {} experts", JsonCursor::shown(tensor.name), count));
    const StreamedTensor stack = stream_gguf(*file_, tensor);
    for (std::int64_t expert = 0; expert < count; ++expert) {
      StreamedTensor one = expert_of(stack, expert);
      one.name = names_.expert_to_config_name(tensor.name, expert).value();
      out_.weights.push_back(std::move(one));
    }
  }

  /// If the head is the token table, because it is absent or identical, it becomes an alias.
  void tie_head() {
    if (names_.tie.empty()) return;
    const std::string head = names_.tie + ".weight";
    const GgufTensor* table = file_->tensor("token_embd.weight");
    const GgufTensor* own = file_->tensor(head);
    const bool same = own == nullptr ||
                      (own->type == table->type && own->shape == table->shape &&
                       std::memcmp(own->data.data(), table->data.data(), own->data.size()) == 0);
    out_.model_config["tie_word_embeddings"] = json::Value::boolean(same);
    if (!same) return;
    const auto alias = names_.to_config_name(head), name = names_.to_config_name(table->name);
    TESSERA_ASSERT(alias && name);
    std::erase_if(out_.weights, [&](const StreamedTensor& one) { return one.name == *alias; });
    for (StreamedTensor& one : out_.weights) {
      if (one.name == *name) one.aliases = {*alias};
    }
  }

  std::shared_ptr<const GgufFile> file_;
  std::string architecture_;
  const models::GgufNames& names_;
  std::set<std::string> known_;
  /// The parts, as far as they were found, of a tensor that the file stores in parts.
  struct Whole {
    const models::GgufNames::Parts* parts = nullptr;
    std::vector<std::optional<StreamedTensor>> tensors;
  };
  std::map<std::string, Whole> wholes_;
  Foreign out_;
};

Foreign open(const fs::path& path) {
  return Model(path).read();
}

TESSERA_FOREIGN_FORMAT("gguf", (ForeignFormat{recognises, open}));

}  // namespace

bool is_gguf(const fs::path& path) {
  return path.extension() == ".gguf";
}

StreamedTensor stream_gguf(const GgufFile& file, const GgufTensor& tensor) {
  if (const auto dtype = plain_type(tensor.type)) {
    return stream({tensor.name,
                   *dtype,
                   tensor.shape,
                   row_major(tensor.shape),
                   tensor.data.data(),
                   file.path(),
                   file.map()},
                  tensor.name);
  }
  const Weight raw{tensor.name,
                   DType::U8,
                   {static_cast<std::int64_t>(tensor.data.size())},
                   {1},
                   tensor.data.data(),
                   file.path(),
                   file.map()};
  return decoded(raw, tensor);
}

std::string gguf_types(const GgufFile& file) {
  std::map<std::string_view, int> counts;
  for (const GgufTensor& tensor : file.tensors())
    ++counts[ggml_block(tensor.type).name];
  std::vector<std::pair<std::string_view, int>> order(counts.begin(), counts.end());
  std::stable_sort(
      order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> names;
  for (const auto& [name, count] : order)
    names.emplace_back(name);
  return text::join(names, ", ");
}

}  // namespace tessera::interop

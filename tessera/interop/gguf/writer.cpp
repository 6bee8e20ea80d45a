// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/gguf/writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/gguf/config_place.h"
#include "tessera/interop/gguf/file.h"
#include "tessera/interop/gguf/keys.h"
#include "tessera/interop/gguf/layout.h"
#include "tessera/interop/gguf/long_rope.h"
#include "tessera/interop/gguf/parts.h"
#include "tessera/interop/gguf/reader.h"
#include "tessera/models/family.h"
#include "tessera/models/gguf_names.h"
#include "tessera/models/layer_types.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using checkpoint::StreamedTensor;

constexpr std::uint64_t kAlignment = 32;
constexpr std::uint32_t kVersion = 3;
constexpr const char* kOtherFix = "convert it to a Hugging Face folder instead";

std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

[[noreturn]] void unsupported(const std::string& what) {
  throw Error(Error::Kind::Unsupported, what + ", which GGUF has no word for", kOtherFix);
}

/// llama.cpp's number for a file that mostly has this type.
std::int64_t file_type(GgmlType type) {
  if (type == GgmlType::F16) return 1;
  if (type == GgmlType::Q8_0) return 7;
  return type == GgmlType::BF16 ? 32 : 0;
}

GgmlType type_of(DType dtype) {
  if (dtype == DType::F16) return GgmlType::F16;
  return dtype == DType::BF16 ? GgmlType::BF16 : GgmlType::F32;
}

/// Lays out one model.
class Planner {
 public:
  Planner(const std::vector<StreamedTensor>& tensors, const FilesBeside& files)
      : tensors_(tensors), files_(files) {
    const auto found = std::find_if(
        files.begin(), files.end(), [](const auto& file) { return file.first == "config.json"; });
    TESSERA_REQUIRE(found != files.end(),
                    Format,
                    "no config.json says what model the weights are",
                    "put the model's config.json next to them");
    config_ = json::parse_strict(found->second, "config.json");
    const json::Value* type = config_.is_object() ? config_.find("model_type") : nullptr;
    const std::string model = type != nullptr && type->is_string() ? type->as_string() : "";
    const std::string family =
        models::families().has(model) ? model : models::family_of_hf(config_);
    for (const std::string& architecture : models::gguf_names().names()) {
      const models::GgufNames& names = models::gguf_names().get(architecture);
      if (names.model_type != family) continue;
      architecture_ = names.stored_as.empty() ? architecture : names.stored_as;
      names_ = &names;
    }
    if (names_ == nullptr) unsupported(fmt::format("the model is of type \"{}\"", model));
    map_ = &models::families().get(family).weight_map;
    config_ = complete(config_);
  }

  GgufPlan plan(std::optional<GgmlType> type) {
    for (const StreamedTensor& tensor : tensors_)
      add_tensor(tensor);
    add_stacks();
    tell_of_heads();
    const auto table = find("token_embd.weight");
    TESSERA_REQUIRE(table != plan_.tensors.end() && table->data.shape.size() == 2,
                    Format,
                    "the weights have no table of tokens",
                    "take all of the model's files");
    const GgmlType wanted = type.value_or(type_of(table->data.dtype));
    add_general(wanted);
    add_sizes();
    const std::int64_t rows = table->data.shape[0];
    keys_.count(key("vocab_size"), rows);
    if (names_->rotary) add_rotary();  // may add a tensor
    add_tokenizer(rows);
    keys_.flag(std::string(kGgufMark), true);
    choose_types(wanted);
    lay_out();
    return std::move(plan_);
  }

 private:
  /// Completes config.json with every key of the family, independent of the version that wrote it.
  static json::Value complete(const json::Value& config) {
    const models::ModelOptions options = models::options_from_hf(config);
    return models::families().get(options.family()).to_hf(*options);
  }
  [[nodiscard]] std::string key(const std::string& name) const {
    return architecture_ + "." + name;
  }
  [[nodiscard]] std::vector<GgufPlan::Tensor>::iterator find(std::string_view name) {
    return std::find_if(plan_.tensors.begin(), plan_.tensors.end(), [&](const auto& tensor) {
      return tensor.name == name;
    });
  }
  [[nodiscard]] std::optional<std::int64_t> count_of(const std::string& gguf) const {
    for (const auto& entry : names_->keys) {
      const json::Value* value = entry.gguf == gguf ? at_path(config_, entry.config) : nullptr;
      if (value != nullptr && value->is_number()) return value->as_integer();
    }
    return std::nullopt;
  }
  [[nodiscard]] std::int64_t required(const std::string& gguf) const {
    const auto count = count_of(gguf);
    TESSERA_REQUIRE(count && *count > 0,
                    Format,
                    fmt::format("config.json says no {}", gguf),
                    "mend config.json, or fetch it again");
    return *count;
  }

  [[nodiscard]] std::string known_as(const std::string& name) const {
    return map_->known_as != nullptr ? map_->known_as(name) : name;
  }
  /// The tensor's name in the file, whether or not its name has the prefix of the whole model.
  [[nodiscard]] std::string name_of(const StreamedTensor& tensor) const {
    for (const std::string& name : whole_names_of(tensor)) {
      if (const auto found = names_->to_gguf_name(name)) return *found;
    }
    unsupported(fmt::format("the model has a tensor {}", tensor.name));
  }
  [[nodiscard]] std::array<std::string, 2> whole_names_of(const StreamedTensor& tensor) const {
    const std::string& first = names_->modules.front().second;
    const std::string known = known_as(tensor.name);
    return {known, first.substr(0, first.find('.') + 1) + known};
  }
  void require_numbers(const StreamedTensor& tensor) const {
    if (!checkpoint::convertible(tensor.dtype, DType::F32))
      unsupported(fmt::format("tensor {} is of {}", tensor.name, tessera::name(tensor.dtype)));
  }
  /// False: the tensor is not one that files have in parts.
  bool add_parts(const StreamedTensor& tensor) {
    for (const std::string& name : whole_names_of(tensor)) {
      const auto found = names_->in_parts(name);
      if (!found) continue;
      require_numbers(tensor);
      for (StreamedTensor& part :
           parts_of(tensor, *found->parts, found->files, required(found->parts->count), config_)) {
        const std::string file = part.name;
        plan_.tensors.push_back({file, GgmlType::F32, std::move(part)});
      }
      return true;
    }
    return false;
  }

  void add_tensor(const StreamedTensor& tensor) {
    if (is_stored_buffer(tensor.name)) return;
    if (map_->is_buffer != nullptr && map_->is_buffer(tensor.name)) return;
    if (map_->may_be_unused != nullptr && map_->may_be_unused(known_as(tensor.name))) {
      if (names_->tie.empty()) heads_.push_back(tensor.name);
      return;
    }
    if (take_expert(tensor) || add_parts(tensor)) return;
    const std::string name = name_of(tensor);
    const json::Value* tied = config_.find("tie_word_embeddings");
    if (name == names_->tie + ".weight" && tied != nullptr && tied->is_bool() && tied->as_bool())
      return;
    require_numbers(tensor);
    StreamedTensor data = tensor;
    for (const std::string& module : names_->transposed) {
      if (data.shape.size() == 2 && models::is_of_module(name, module)) data = exchanged(data);
    }
    for (const auto& [module, heads] : names_->rotated) {
      if (!models::is_of_module(name, module)) continue;
      const std::int64_t count = count_of(heads).value_or(required("attention.head_count"));
      TESSERA_REQUIRE(
          count > 0 && data.shape.front() % (2 * count) == 0,
          Format,
          fmt::format("tensor {} has {} rows for {} heads", tensor.name, data.shape.front(), count),
          "config.json and weights are not of one model");
      data = rotary_rows(data, count, RotaryRows::Neighbours);
    }
    for (const std::string& module : names_->by_part) {
      if (!models::is_of_module(name, module)) continue;
      const std::int64_t heads = required("attention.head_count");
      TESSERA_REQUIRE(data.shape.front() % (3 * heads) == 0,
                      Format,
                      fmt::format("tensor {} has {} rows for queries, keys and values of {} heads",
                                  tensor.name,
                                  data.shape.front(),
                                  heads),
                      "config.json and weights are not of one model");
      data = qkv_rows(data, heads, QkvRows::ByPart);
    }
    for (const std::string& module : names_->raised) {
      if (models::is_of_module(name, module)) data = shifted(data, 1.0F);
    }
    for (const std::string& module : names_->rows_of_one) {
      if (models::is_of_module(name, module) && data.shape.front() == 1 && data.shape.size() == 2)
        data.shape.erase(data.shape.begin());
    }
    plan_.tensors.push_back({name, GgmlType::F32, std::move(data)});
  }

  /// Keeps a tensor of an expert for add_stacks(); false: it is another tensor.
  bool take_expert(const StreamedTensor& tensor) {
    const auto expert = names_->expert_to_gguf_name(known_as(tensor.name));
    if (!expert) return false;
    require_numbers(tensor);
    stacks_[expert->name].emplace(expert->expert, tensor);
    return true;
  }

  /// The tensors of all experts of a layer are one in the file.
  void add_stacks() {
    for (auto& [name, experts] : stacks_) {
      const std::int64_t count = count_of("expert_count").value_or(0);
      const StreamedTensor& first = experts.begin()->second;
      std::vector<StreamedTensor> all;
      for (const auto& [number, tensor] : experts) {
        TESSERA_REQUIRE(
            number == std::ssize(all) && tensor.shape == first.shape && tensor.dtype == first.dtype,
            Format,
            fmt::format("tensor {} does not continue the experts of {}", tensor.name, name),
            "take all of the model's files, with experts of one shape and type");
        all.push_back(tensor);
      }
      TESSERA_REQUIRE(
          std::ssize(all) == count,
          Format,
          fmt::format("the weights have {} of the {} experts of {}", all.size(), count, name),
          "take all of the model's files");
      plan_.tensors.push_back({name, GgmlType::F32, stacked(name, std::move(all))});
    }
  }

  void tell_of_heads() const {
    if (heads_.empty()) return;
    log::warn_once(fmt::format(
        "GGUF files of this architecture hold a model without its heads: {} {} left out",
        text::join_some(heads_, ", "),
        heads_.size() == 1 ? "is" : "are"));
  }

  void add_general(GgmlType type) {
    keys_.add("general.architecture", architecture_);
    keys_.add("general.type", "model");
    keys_.count("general.file_type", file_type(type));
    if (type == GgmlType::Q8_0) keys_.count("general.quantization_version", 2);
  }

  /// The architecture always computes this, so config.json must agree; another notation of the same
  /// value is allowed.
  void require_implied(const std::string& name, const json::Value& value) const {
    json::Value changed = config_;
    config_place(changed, name) = value;
    if (complete(changed) == config_) return;
    const json::Value* said = at_path(config_, name);
    unsupported(
        fmt::format("config.json says {} {}", name, said == nullptr ? "nothing" : said->dump()));
  }

  void add_sizes() {
    for (const auto& [name, value] : names_->implied)
      require_implied(name, value);
    if (names_->derived != nullptr) {
      for (const auto& [name, value] : names_->derived(config_))
        require_implied(name, value);
    }
    for (const auto& [name, flag] : names_->switches) {
      if (const json::Value* said = config_.find(flag); said != nullptr && said->is_bool())
        keys_.flag(key(name), said->as_bool());
    }
    for (const auto& [name, only] : names_->fixed_flags)
      keys_.flag(key(name), only);
    for (const auto& [name, only] : names_->constants)
      keys_.count(key(name), only);
    for (const auto& [name, only] : names_->real_constants)
      keys_.real(key(name), only);
    if (names_->counts != nullptr) {
      for (const auto& [name, value] : names_->counts(config_))
        keys_.count(key(name), value);
    }
    for (const models::GgufNames::Rows& rows : names_->rows) {
      const auto table = find(rows.tensor);
      if (table != plan_.tensors.end()) keys_.count(rows.gguf, table->data.shape.front());
    }
    for (const auto& entry : names_->keys) {
      const json::Value* value = at_path(config_, entry.config);
      const bool said = value != nullptr && value->is_number();
      if (entry.real) {
        if (said) keys_.real(key(entry.gguf), value->as_double());
        TESSERA_REQUIRE(said || !entry.required,
                        Format,
                        fmt::format("config.json says no {}", entry.config),
                        "mend config.json, or fetch it again");
      } else if (const auto hidden = find("blk.0.ffn_up.weight");
                 !said && entry.gguf == "feed_forward_length" && hidden != plan_.tensors.end()) {
        keys_.count(key(entry.gguf), hidden->data.shape.front());
      } else if (!entry.config.empty() && (said || entry.required)) {
        const std::int64_t value_of = count_of(entry.gguf).value_or(0);
        keys_.count(key(entry.gguf), said && value_of == 0 ? 0 : required(entry.gguf));
        if (entry.gguf == models::kGgufWindow && !names_->stored_as.empty()) tell_of_window();
      }
    }
  }

  /// llama.cpp reads these files with attention to all positions.
  void tell_of_window() const {
    const std::int64_t window = required(models::kGgufWindow);
    if (count_of("context_length").value_or(0) <= window) return;
    log::warn_once(fmt::format(
        "the programs that GGUF is for have no attention window in this architecture and compute "
        "the same only for texts of up to {} tokens; tessera reads the window from the file",
        window));
  }

  /// True if config.json has the base of the frequencies under the family's own key.
  [[nodiscard]] bool has_base() const {
    return std::ranges::any_of(names_->keys, [this](const auto& entry) {
      return entry.gguf == "rope.freq_base" && number_at(config_, entry.config.c_str());
    });
  }

  /// The rotary scaling part of a config.json, under either generation's name.
  [[nodiscard]] const json::Value* scaling() const {
    for (const char* name : {"rope_parameters", "rope_scaling"}) {
      const json::Value* found = config_.find(name);
      if (found == nullptr || !found->is_object()) continue;
      // If windowed layers have their own positions, a scaling applies to the others.
      const json::Value* full = found->find(models::kFullAttention);
      return full != nullptr && full->is_object() ? full : found;
    }
    return nullptr;
  }

  /// llama.cpp scales only the rotary positions of layers without a window.
  void refuse_local_scaling() const {
    const json::Value* both = config_.find("rope_parameters");
    const json::Value* local =
        both != nullptr && both->is_object() ? both->find(models::kSlidingAttention) : nullptr;
    const json::Value* type =
        local != nullptr && local->is_object() ? local->find("rope_type") : nullptr;
    if (type != nullptr && type->is_string() && type->as_string() != "default")
      unsupported(fmt::format("config.json says rope_type \"{}\" for layers with a window",
                              type->as_string()));
  }

  void add_rotary() {
    if (!names_->rotary_channels.empty()) return add_latent_rotary();
    const std::int64_t heads = required("attention.head_count");
    const std::int64_t channels =
        count_of("attention.key_length").value_or(required("embedding_length") / heads);
    if (count_of("attention.key_length")) keys_.count(key("attention.value_length"), channels);
    const double share = names_->rotary_share.empty()
                             ? 1.0
                             : number_at(config_, names_->rotary_share.c_str()).value_or(1.0);
    keys_.count(key("rope.dimension_count"),
                static_cast<std::int64_t>(static_cast<double>(channels) * share));
    const json::Value* found = scaling();
    if (found == nullptr) return;
    double theta = number_at(config_, "rope_theta").value_or(10000);
    if (const auto own = number_at(*found, "rope_theta")) {
      theta = *own;
      if (!has_base()) keys_.real(key("rope.freq_base"), theta);
    }
    const json::Value* type = found->find("rope_type");
    if (type == nullptr) type = found->find("type");
    const std::string kind = type != nullptr && type->is_string() ? type->as_string() : "default";
    refuse_local_scaling();
    if (kind == "llama3" && !names_->rotary_factors)
      unsupported(fmt::format("llama.cpp's \"{}\" has no rope_type \"llama3\"", architecture_));
    if (kind == "linear") {
      keys_.add(key("rope.scaling.type"), "linear");
      keys_.real(key("rope.scaling.factor"), number_at(*found, "factor").value_or(1));
    } else if (kind == "llama3") {
      keys_.add(kGgufRotaryRule, found->dump());
      add_factors("rope_freqs.weight", rotary_factors(*found, theta, channels));
    } else if (kind == "yarn" && names_->yarn) {
      add_yarn(*found);
    } else if (kind == "longrope" && names_->long_rope) {
      add_long_rope(long_rope_of(*found, names_->long_rope->mscale));
    } else if (kind != "default") {
      unsupported(fmt::format("config.json says rope_type \"{}\"", kind));
    }
  }

  void add_factors(const std::string& name, std::vector<float> numbers) {
    const auto factors = std::make_shared<const std::vector<float>>(std::move(numbers));
    const auto read = [factors](std::int64_t begin, std::int64_t end, std::byte* out) {
      std::memcpy(
          out, factors->data() + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
    };
    plan_.tensors.push_back(
        {name, GgmlType::F32, {name, DType::F32, {std::ssize(*factors)}, read, {}, {}}});
  }

  void add_long_rope(const LongRope& rope) {
    keys_.count(key("rope.scaling.original_context_length"), rope.original_length);
    keys_.real(key("rope.scaling.attn_factor"), rope.scale);
    add_factors(kLongFactors, rope.long_factors);
    add_factors(kShortFactors, rope.short_factors);
  }

  /// A part of each head is rotated, for which the file has no share but a number of channels.
  void add_latent_rotary() {
    const auto channels = number_at(config_, names_->rotary_channels.c_str());
    TESSERA_REQUIRE(channels && *channels > 0,
                    Format,
                    fmt::format("config.json says no {}", names_->rotary_channels),
                    "mend config.json, or fetch it again");
    keys_.count(key("rope.dimension_count"), static_cast<std::int64_t>(*channels));
    const json::Value* found = scaling();
    const json::Value* type = found != nullptr ? found->find("rope_type") : nullptr;
    const std::string kind = type != nullptr && type->is_string() ? type->as_string() : "default";
    if (kind == "yarn" && names_->yarn) return add_yarn(*found);
    if (kind != "default") unsupported(fmt::format("config.json says rope_type \"{}\"", kind));
  }

  /// Readers compute the factor of sines and cosines, so config.json must have the same.
  void add_yarn(const json::Value& rope) {
    const double scale = number_at(rope, "mscale").value_or(0),
                 all = number_at(rope, "mscale_all_dim").value_or(0);
    const std::optional<double> own = number_at(rope, "attention_factor");
    const bool plain = scale == 0 && all == 0;
    const bool fits = names_->yarn->log_multiplier
                          ? (plain && own == 1.0) || (scale == all && all > 0 && !own)
                          : plain && !own;
    if (!fits)
      unsupported(
          "config.json says another factor of sines and cosines (mscale, mscale_all_dim, "
          "attention_factor) than readers of this architecture compute");
    const json::Value* truncate = rope.find("truncate");
    const bool truncates = truncate == nullptr || !truncate->is_bool() || truncate->as_bool();
    if (truncates != names_->yarn->truncate)
      unsupported(fmt::format("config.json says truncate {} of yarn", truncates));
    const std::string at = key("rope.scaling.");
    keys_.add(at + "type", "yarn");
    keys_.real(at + "factor", number_at(rope, "factor").value_or(1));
    keys_.count(
        at + "original_context_length",
        static_cast<std::int64_t>(number_at(rope, "original_max_position_embeddings").value_or(0)));
    keys_.real(at + "yarn_beta_fast", number_at(rope, "beta_fast").value_or(32));
    keys_.real(at + "yarn_beta_slow", number_at(rope, "beta_slow").value_or(1));
    if (names_->yarn->log_multiplier) keys_.real(at + "yarn_log_multiplier", all / 10);
  }

  void add_tokenizer(std::int64_t rows) {
    const auto found = gguf_tokenizer_of(files_, rows);
    const auto at = [](const char* name) { return std::string("tokenizer.ggml.") + name; };
    if (!found) return keys_.add(at("model"), "none");
    keys_.add(at("model"), found->tokenizer);
    if (!found->pre.empty()) keys_.add(at("pre"), found->pre);
    keys_.texts(at("tokens"), found->tokens);
    if (!found->scores.empty()) keys_.numbers(at("scores"), GgufType::F32, found->scores);
    keys_.numbers(at("token_type"), GgufType::I32, found->types);
    if (found->scores.empty() && !found->pre.empty()) keys_.texts(at("merges"), found->merges);
    for (const auto& [name, id] : found->ids)
      keys_.count(at(name.c_str()), id);
    if (found->add_bos) keys_.flag(at("add_bos_token"), *found->add_bos);
    if (found->add_eos) keys_.flag(at("add_eos_token"), *found->add_eos);
    if (found->add_space_prefix) keys_.flag(at("add_space_prefix"), *found->add_space_prefix);
    if (!found->chat_template.empty()) keys_.add("tokenizer.chat_template", found->chat_template);
  }

  void choose_types(GgmlType wanted) {
    for (GgufPlan::Tensor& tensor : plan_.tensors) {
      const bool matrix = tensor.data.shape.size() > 1 && tensor.name != "position_embd.weight" &&
                          tensor.name != "token_types.weight" &&
                          // Readers expect the router and biases of experts in fp32.
                          !tensor.name.ends_with(".ffn_gate_inp.weight") &&
                          !tensor.name.ends_with(".bias");
      const bool whole = tensor.data.shape.back() % ggml_block(wanted).elements == 0;
      tensor.type = !matrix ? GgmlType::F32 : whole ? wanted : GgmlType::F16;
    }
  }

  void lay_out() {
    std::string list;
    for (GgufPlan::Tensor& tensor : plan_.tensors) {
      const GgmlBlock block = ggml_block(tensor.type);
      std::int64_t elements = 1;
      for (const std::int64_t size : tensor.data.shape)
        elements *= size;
      tensor.offset = plan_.bytes;
      tensor.bytes = static_cast<std::uint64_t>(elements / block.elements * block.bytes);
      plan_.bytes += padded(tensor.bytes);
      list +=
          gguf_raw(tensor.name) + gguf_raw(static_cast<std::uint32_t>(tensor.data.shape.size()));
      for (std::size_t d = tensor.data.shape.size(); d-- > 0;)
        list += gguf_raw(static_cast<std::uint64_t>(tensor.data.shape[d]));
      list += gguf_raw(static_cast<std::uint32_t>(tensor.type)) + gguf_raw(tensor.offset);
    }
    plan_.header = "GGUF" + gguf_raw(kVersion) +
                   gguf_raw(static_cast<std::uint64_t>(plan_.tensors.size())) +
                   gguf_raw(keys_.size()) + keys_.bytes() + list;
    plan_.header.resize(padded(plan_.header.size()), '\0');
  }

  const std::vector<StreamedTensor>& tensors_;
  const FilesBeside& files_;
  json::Value config_;
  std::string architecture_;
  const models::GgufNames* names_ = nullptr;
  const models::WeightMap* map_ = nullptr;
  GgufKeys keys_;
  GgufPlan plan_;
  /// By the name in the file: the tensors of experts, by their numbers.
  std::map<std::string, std::map<std::int64_t, StreamedTensor>> stacks_;
  std::vector<std::string> heads_;  // tensors that files of this architecture leave out
};

[[noreturn]] void no_room(const GgufPlan::Tensor& tensor) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("tensor {} has a number that {} has no room for",
                          tensor.data.name,
                          ggml_block(tensor.type).name),
              "write another type: --dtype bf16 or fp32");
}

/// Encodes floats in the tensor's type.
void encode(const GgufPlan::Tensor& tensor, const std::vector<float>& in, std::string& out) {
  const auto count = static_cast<std::int64_t>(in.size());
  const GgmlBlock block = ggml_block(tensor.type);
  out.resize(static_cast<std::size_t>(count / block.elements * block.bytes));
  auto* const bytes = reinterpret_cast<std::byte*>(out.data());
  if (tensor.type == GgmlType::Q8_0) {
    if (!encode_q8_0(in.data(), count, bytes)) no_room(tensor);
    return;
  }
  const DType dtype = plain_type(tensor.type).value();
  checkpoint::convert(
      DType::F32, reinterpret_cast<const std::byte*>(in.data()), dtype, bytes, count);
  if (dtype != DType::F16) return;
  for (const float value : in) {
    if (std::isfinite(value) && std::isinf(from_fp16(to_fp16(value)))) no_room(tensor);
  }
}

}  // namespace

GgufPlan plan_gguf(const std::vector<StreamedTensor>& tensors,
                   const FilesBeside& files,
                   std::optional<GgmlType> type) {
  return Planner(tensors, files).plan(type);
}

void write_gguf(const fs::path& path, const GgufPlan& plan, const checkpoint::Written& written) {
  constexpr std::int64_t kElements = 1 << 18;
  const auto output = checkpoint::real_storage().create(path, plan.header.size() + plan.bytes);
  output->append(std::as_bytes(std::span(plan.header)));
  std::vector<std::byte> stored;
  std::vector<float> floats;
  std::string encoded;
  for (const GgufPlan::Tensor& tensor : plan.tensors) {
    const StreamedTensor& data = tensor.data;
    const auto all = static_cast<std::int64_t>(data.bytes() / size_of(data.dtype));
    for (std::int64_t at = 0; at < all; at += kElements) {
      const std::int64_t count = std::min(kElements, all - at);
      stored.resize(static_cast<std::size_t>(count) * size_of(data.dtype));
      floats.resize(static_cast<std::size_t>(count));
      data.read(at, at + count, stored.data());
      checkpoint::convert(data.dtype,
                          stored.data(),
                          DType::F32,
                          reinterpret_cast<std::byte*>(floats.data()),
                          count);
      encode(tensor, floats, encoded);
      output->append(std::as_bytes(std::span(encoded)));
      written(encoded.size());
    }
    if (data.release) data.release();
    const std::string padding(padded(tensor.bytes) - tensor.bytes, '\0');
    output->append(std::as_bytes(std::span(padding)));
    written(padding.size());
  }
  output->sync();
}

}  // namespace tessera::interop

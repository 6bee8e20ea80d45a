// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/model_export.h"

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/models/gpt2_hf.h"
#include "tessera/planner/model_source.h"

namespace tessera::planner {
namespace {

namespace fs = std::filesystem;
using checkpoint::StreamedTensor;
using checkpoint::Weight;

bool is_float(DType dtype) {
  return dtype == DType::F64 || dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
}

const char* torch_name(DType dtype) {
  if (dtype == DType::BF16) return "bfloat16";
  return dtype == DType::F16 ? "float16" : "float32";
}

using Read = std::function<void(std::int64_t, std::int64_t, std::byte*)>;

/// A parameter of ours in their layout. The whole of a transposed one is kept while it is read.
Read read_parameter(const models::WeightSource& weights,
                    const std::shared_ptr<const ParamInfo>& info,
                    const models::HfTensor& theirs,
                    DType dtype) {
  auto whole = std::make_shared<std::vector<float>>();
  return [=](std::int64_t begin, std::int64_t end, std::byte* out) {
    std::vector<float> piece(static_cast<std::size_t>(end - begin));
    if (!theirs.transposed) {
      weights(*info, begin, end, piece.data());
    } else {
      if (whole->empty()) {
        whole->resize(static_cast<std::size_t>(info->numel()));
        weights(*info, 0, info->numel(), whole->data());
      }
      const std::int64_t rows = theirs.shape[0], cols = theirs.shape[1];
      for (std::int64_t i = begin; i < end; ++i) {
        piece[static_cast<std::size_t>(i - begin)] =
            (*whole)[static_cast<std::size_t>(i % cols * rows + i / cols)];
      }
      if (end == info->numel()) std::vector<float>().swap(*whole);
    }
    checkpoint::convert(
        DType::F32, reinterpret_cast<const std::byte*>(piece.data()), dtype, out, end - begin);
  };
}

std::string utf8(std::uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0U | code >> 6), static_cast<char>(0x80U | (code & 0x3FU))};
}

/// The character that stands for a byte in GPT-2's files.
std::string character_of(std::uint32_t byte) {
  const auto printable = [](std::uint32_t b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  if (printable(byte)) return utf8(byte);
  std::uint32_t before = 0;
  for (std::uint32_t b = 0; b < byte; ++b)
    before += printable(b) ? 0 : 1;
  return utf8(256 + before);
}

json::Value tokenizer_config(const std::string& end_of_text, std::int64_t max_positions) {
  const auto text = json::Value::string(end_of_text);
  return json::Value::object({{"tokenizer_class", json::Value::string("GPT2Tokenizer")},
                              {"model_max_length", json::Value::integer(max_positions)},
                              {"add_prefix_space", json::Value::boolean(false)},
                              {"bos_token", text},
                              {"eos_token", text},
                              {"unk_token", text}});
}

// GPT-2's tokenizer without merges gives each byte an id of its own: with the ids of ours it is the
// byte tokenizer.
void add_tokenizer(ModelExport& out, const ModelSource& source, std::int64_t max_positions) {
  const data::TokenizerOptions& options = source.tokenizer;
  std::string end = "<|endoftext|>";
  if (options.type == "byte") {
    json::Value vocab = json::Value::object();
    for (std::uint32_t byte = 0; byte < 256; ++byte)
      vocab[character_of(byte)] = json::Value::integer(byte);
    end = character_of(0);
    out.files.emplace_back("vocab.json", vocab.dump() + "\n");
    out.files.emplace_back("merges.txt", "#version: 0.2\n");
  } else {
    const fs::path shipped = data::share_dir() / "gpt2";
    const bool own = !options.vocab.empty();
    out.files.emplace_back("vocab.json",
                           files::read(own ? fs::path(options.vocab) : shipped / "vocab.json"));
    out.files.emplace_back("merges.txt",
                           files::read(own ? fs::path(options.merges) : shipped / "merges.txt"));
  }
  out.files.emplace_back("tokenizer_config.json",
                         tokenizer_config(end, max_positions).dump(2) + "\n");
}

ModelExport of_checkpoint(const ModelSource& source, std::optional<DType> wanted) {
  const DType dtype = wanted.value_or(DType::F32);
  const auto tokenizer = source_tokenizer(source);
  const models::Family& family = models::families().get(source.model.family);
  config::Problems problems;
  const models::Resolved resolved =
      family.resolve(source.model, tokenizer->size(), std::nullopt, problems, {});
  problems.raise();
  ModelExport out;
  json::Value config = models::gpt2_config_to_hf(source.model);
  const json::Value end = json::Value::integer(tokenizer->end_of_text());
  config["bos_token_id"] = end;
  config["eos_token_id"] = end;
  config["torch_dtype"] = json::Value::string(torch_name(dtype));
  const json::Value generation =
      json::Value::object({{"bos_token_id", end}, {"eos_token_id", end}});
  out.files = {{"config.json", config.dump(2) + "\n"},
               {"generation_config.json", generation.dump(2) + "\n"}};
  add_tokenizer(out, source, resolved.max_positions);
  const models::WeightSource weights = source_weights(source, resolved);
  for (const nn::BlockSpec& block : resolved.model.blocks) {
    nn::Params params(block.name);
    const auto instance = block.make();
    instance->declare(params);
    for (const auto& param : params.list()) {
      const auto info = param->shared_info();
      const models::HfTensor theirs = family.hf_tensor(*info);
      StreamedTensor tensor{
          theirs.name, dtype, theirs.shape, read_parameter(weights, info, theirs, dtype), {}};
      if (info->name == "wte.weight" && source.model.tie_embeddings)
        tensor.aliases = {"lm_head.weight"};
      out.tensors.push_back(std::move(tensor));
    }
  }
  return out;
}

StreamedTensor of_weight(const Weight& weight, std::optional<DType> wanted) {
  const DType dtype = wanted && is_float(weight.dtype) ? *wanted : weight.dtype;
  const auto read = [weight, dtype](std::int64_t begin, std::int64_t end, std::byte* out) {
    if (dtype == weight.dtype) return weight.copy(begin, end, out);
    std::vector<std::byte> piece(static_cast<std::size_t>(end - begin) * size_of(weight.dtype));
    weight.copy(begin, end, piece.data());
    checkpoint::convert(weight.dtype, piece.data(), dtype, out, end - begin);
  };
  return {weight.name, dtype, weight.shape, read, {}};
}

/// Tied tensors: those that share a storage, and those of which a safetensors file says so.
std::vector<StreamedTensor> of_weights(const fs::path& folder, std::optional<DType> wanted) {
  const auto weights = checkpoint::open_weights(folder);
  std::vector<StreamedTensor> out;
  std::map<const std::byte*, std::vector<std::pair<const Weight*, std::size_t>>> at;
  for (const Weight& weight : weights) {
    auto& neighbours = at[weight.data];
    bool tied = false;
    for (const auto& [other, index] : neighbours) {
      if (!weight.same_storage(*other)) continue;
      out[index].aliases.push_back(weight.name);
      tied = true;
      break;
    }
    if (tied) continue;
    neighbours.emplace_back(&weight, out.size());
    out.push_back(of_weight(weight, wanted));
  }
  std::map<std::string, std::size_t> names;
  for (std::size_t i = 0; i < out.size(); ++i)
    names.emplace(out[i].name, i);
  for (const fs::path& path : checkpoint::weight_files(folder)) {
    if (path.extension() != ".safetensors") continue;
    const checkpoint::SafetensorsFile file(path);
    for (const auto& [alias, name] : file.metadata()) {
      const auto found = names.find(name);
      if (found != names.end() && names.count(alias) == 0)
        out[found->second].aliases.push_back(alias);
    }
  }
  return out;
}

constexpr std::array<const char*, 9> kBesideWeights = {"generation_config.json",
                                                       "tokenizer.json",
                                                       "tokenizer_config.json",
                                                       "vocab.json",
                                                       "merges.txt",
                                                       "vocab.txt",
                                                       "tokenizer.model",
                                                       "special_tokens_map.json",
                                                       "added_tokens.json"};

ModelExport of_hugging_face(const fs::path& folder, std::optional<DType> dtype) {
  ModelExport out;
  const fs::path path = folder / "config.json";
  TESSERA_REQUIRE(
      fs::exists(path),
      Format,
      fmt::format("{} has no config.json, manifest.json or checkpoints", folder.string()),
      "name a run or checkpoint of tessera, or a Hugging Face folder");
  std::string text = files::read(path);
  json::Value config = json::parse_strict(text, path.string());
  TESSERA_REQUIRE(
      config.is_object(), Format, path.string() + " is no JSON object", "fetch it again");
  if (dtype) {
    const char* key = config.find("dtype") != nullptr ? "dtype" : "torch_dtype";
    config[key] = json::Value::string(torch_name(*dtype));
    text = config.dump(2) + "\n";
  }
  out.files.emplace_back("config.json", std::move(text));
  for (const char* name : kBesideWeights) {
    if (fs::exists(folder / name)) out.files.emplace_back(name, files::read(folder / name));
  }
  out.tensors = of_weights(folder, dtype);
  return out;
}

bool is_ours(const fs::path& path) {
  return fs::exists(path / "manifest.json") || fs::is_directory(path / "checkpoints");
}

}  // namespace

ModelExport open_model_export(const fs::path& source, std::optional<DType> dtype) {
  TESSERA_REQUIRE(fs::is_directory(source),
                  Config,
                  fmt::format("there is no folder {}", source.string()),
                  "name a run or checkpoint of tessera, or a Hugging Face folder");
  if (is_ours(source)) return of_checkpoint(open_model_source(source), dtype);
  return of_hugging_face(source, dtype);
}

}  // namespace tessera::planner

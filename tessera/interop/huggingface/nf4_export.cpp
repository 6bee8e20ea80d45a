// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/nf4_export.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/quant_codes.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/config/json.h"
#include "tessera/models/adapter.h"
#include "tessera/models/family.h"
#include "tessera/ops/nf4.h"

namespace tessera::interop {
namespace {

using checkpoint::StreamedTensor;

constexpr std::string_view kWeight = ".weight";
/// Number of block scales that share one scale of their own (double quantization).
constexpr std::int64_t kScaleBlock = 256;
/// Number of blocks that are encoded at a time.
constexpr std::int64_t kPieceBlocks = 4096;
/// Number of characters that a description reserves for the mean of the scales, which is unknown
/// until all weights have been read; spaces fill the rest.
constexpr std::size_t kMeanRoom = 32;

const char* torch_type(DType dtype) {
  if (dtype == DType::BF16) return "bfloat16";
  return dtype == DType::F16 ? "float16" : "float32";
}

std::int64_t blocks_in(std::int64_t count, std::int64_t block) {
  return (count + block - 1) / block;
}

/// A matrix whose codes and scales are made when they are read.
class Nf4Matrix {
 public:
  explicit Nf4Matrix(StreamedTensor source) : source_(std::move(source)) {
    for (const std::int64_t size : source_.shape)
      numel_ *= size;
  }
  [[nodiscard]] std::int64_t code_bytes() const { return blocks_in(numel_, 2); }
  [[nodiscard]] std::int64_t blocks() const { return blocks_in(numel_, ops::kNf4Block); }

  void read_codes(std::int64_t begin, std::int64_t end, std::byte* out) const {
    constexpr std::int64_t kBytes = ops::kNf4Block / 2;
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t first = at / kBytes,
                         last = std::min({first + kPieceBlocks, blocks_in(end, kBytes), blocks()});
      const at::Tensor values = piece(first, last),
                       codes = at::empty({(last - first) * kBytes}, at::kByte),
                       scales = at::empty({last - first}, at::kFloat);
      ops::to_nf4(values, codes, scales);
      const std::int64_t stop = std::min(end, last * kBytes);
      std::memcpy(out,
                  codes.data_ptr<std::uint8_t>() + (at - first * kBytes),
                  static_cast<std::size_t>(stop - at));
      out += stop - at;
      at = stop;
    }
    if (end == code_bytes() && source_.release) source_.release();
  }
  void read_scale_codes(std::int64_t begin, std::int64_t end, std::byte* out) const {
    const Scales& own = scales();
    std::memcpy(out, own.codes.data() + begin, static_cast<std::size_t>(end - begin));
  }
  void read_scale_scales(std::int64_t begin, std::int64_t end, std::byte* out) const {
    const Scales& own = scales();
    std::memcpy(out, own.scales.data() + begin, static_cast<std::size_t>(end - begin) * 4);
  }
  [[nodiscard]] std::size_t description_bytes() const { return description(0).size() + kMeanRoom; }
  void read_description(std::int64_t begin, std::int64_t end, std::byte* out) const {
    std::string text = description(scales().mean);
    TESSERA_ASSERT(text.size() <= description_bytes());
    text.resize(description_bytes(), ' ');
    std::memcpy(out, text.data() + begin, static_cast<std::size_t>(end - begin));
  }

 private:
  struct Scales {
    float mean = 0;
    std::vector<std::uint8_t> codes;
    std::vector<float> scales;
  };

  /// The numbers of blocks [first, last), in fp32.
  [[nodiscard]] at::Tensor piece(std::int64_t first, std::int64_t last) const {
    const std::int64_t begin = first * ops::kNf4Block,
                       end = std::min(last * ops::kNf4Block, numel_);
    const at::Tensor out = at::empty({end - begin}, at::kFloat);
    auto* const floats = reinterpret_cast<std::byte*>(out.data_ptr<float>());
    if (source_.dtype == DType::F32) {
      source_.read(begin, end, floats);
      return out;
    }
    std::vector<std::byte> stored(static_cast<std::size_t>(end - begin) * size_of(source_.dtype));
    source_.read(begin, end, stored.data());
    checkpoint::convert(source_.dtype, stored.data(), DType::F32, floats, end - begin);
    return out;
  }

  const Scales& scales() const {
    std::call_once(scales_made_, [&] {
      std::vector<float> all;
      double sum = 0;
      for (std::int64_t first = 0; first < blocks(); first += kPieceBlocks) {
        const at::Tensor values = piece(first, std::min(first + kPieceBlocks, blocks()));
        const float* const x = values.data_ptr<float>();
        for (std::int64_t at = 0; at < values.numel(); at += ops::kNf4Block) {
          float largest = 0;
          for (std::int64_t i = at; i < std::min(at + ops::kNf4Block, values.numel()); ++i) {
            TESSERA_REQUIRE(std::isfinite(x[i]),
                            Numeric,
                            fmt::format("{} has a number that is not finite", source_.name),
                            "convert it without --dtype nf4 and look for the cause");
            largest = std::max(largest, std::fabs(x[i]));
          }
          sum += largest;
          all.push_back(largest);
        }
      }
      scales_.mean = static_cast<float>(sum / static_cast<double>(all.size()));
      for (float& scale : all)
        scale -= scales_.mean;
      scales_.codes.resize(all.size());
      scales_.scales.resize(
          static_cast<std::size_t>(blocks_in(static_cast<std::int64_t>(all.size()), kScaleBlock)));
      encode_blocks(all, kScaleBlock, DynamicMap::both(), {scales_.codes, scales_.scales});
    });
    return scales_;
  }

  [[nodiscard]] std::string description(float mean) const {
    json::Value shape = json::Value::array();
    for (const std::int64_t size : source_.shape)
      shape.push_back(json::Value::integer(size));
    return json::Value::object({{"quant_type", json::Value::string("nf4")},
                                {"blocksize", json::Value::integer(ops::kNf4Block)},
                                {"dtype", json::Value::string(torch_type(source_.dtype))},
                                {"shape", std::move(shape)},
                                {"nested_blocksize", json::Value::integer(kScaleBlock)},
                                {"nested_dtype", json::Value::string("float32")},
                                {"nested_offset", json::Value::number(double{mean})}})
        .dump();
  }

  StreamedTensor source_;
  std::int64_t numel_ = 1;
  mutable std::once_flag scales_made_;
  mutable Scales scales_;
};

/// A tensor with the same values in every file.
template <std::size_t N>
StreamedTensor table(std::string name, const std::array<float, N>& values) {
  const auto read = [values](std::int64_t begin, std::int64_t end, std::byte* out) {
    std::memcpy(out, values.data() + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
  };
  return {std::move(name), DType::F32, {static_cast<std::int64_t>(N)}, read, {}, {}};
}

/// The tensors that replace a matrix.
void add_parts(StreamedTensor source, std::vector<StreamedTensor>& out) {
  const std::string name = source.name;
  const auto matrix = std::make_shared<const Nf4Matrix>(std::move(source));
  const auto part = [&](const char* suffix,
                        DType dtype,
                        std::vector<std::int64_t> shape,
                        void (Nf4Matrix::*read)(std::int64_t, std::int64_t, std::byte*) const) {
    out.push_back({name + suffix,
                   dtype,
                   std::move(shape),
                   [matrix, read](std::int64_t begin, std::int64_t end, std::byte* to) {
                     ((*matrix).*read)(begin, end, to);
                   },
                   {},
                   {}});
  };
  part("", DType::U8, {matrix->code_bytes(), 1}, &Nf4Matrix::read_codes);
  part(".absmax", DType::U8, {matrix->blocks()}, &Nf4Matrix::read_scale_codes);
  part(".nested_absmax",
       DType::F32,
       {blocks_in(matrix->blocks(), kScaleBlock)},
       &Nf4Matrix::read_scale_scales);
  out.push_back(table(name + ".nested_quant_map", DynamicMap::both().values()));
  out.push_back(table(name + ".quant_map", kNf4Values));
  part(".quant_state.bitsandbytes__nf4",
       DType::U8,
       {static_cast<std::int64_t>(matrix->description_bytes())},
       &Nf4Matrix::read_description);
}

/// The linear layers of a model, by the names of its files.
struct Layers {
  const models::WeightMap* map = nullptr;
  std::set<std::string> linear;  ///< without the head; without the base's prefix
};

Layers layers_of(const json::Value& config) {
  const models::ModelOptions options = models::options_from_hf(config);
  config::Problems problems;
  const models::Resolved model =
      models::resolve(options, options->vocab_size.value_or(1), std::nullopt, problems, {});
  problems.raise();
  Layers out{.map = &models::families().get(options.family()).weight_map};
  const models::Adapter found = models::find_adapter(
      {.type = "lora", .targets = json::Value::string("all-linear")}, model, *out.map);
  for (const models::AdapterModule& module : found.modules) {
    TESSERA_REQUIRE(!module.transposed,
                    Unsupported,
                    fmt::format("--dtype nf4 is not built for {}, whose files store {} transposed",
                                options.family(),
                                module.part.module),
                    "write it with --dtype bf16");
    out.linear.insert(out.map->without_base(module.part.module + std::string(kWeight)));
  }
  return out;
}

}  // namespace

void store_in_nf4(ModelExport& model) {
  const auto file = std::ranges::find_if(
      model.files, [](const auto& beside) { return beside.first == "config.json"; });
  TESSERA_REQUIRE(file != model.files.end(),
                  Format,
                  "there is no config.json next to the weights, which names their linear layers",
                  "put the model's config.json there");
  json::Value config = json::parse_strict(file->second, "config.json");
  const Layers layers = layers_of(config);
  std::set<std::string> unchanged;  // linear layers that transformers would expect in four bits
  const auto keep = [&](const std::string& name) {
    if (name.ends_with(kWeight)) unchanged.insert(name.substr(0, name.size() - kWeight.size()));
  };
  for (const models::Tie& tie : layers.map->ties)
    keep(tie.alias);
  std::vector<StreamedTensor> out;
  DType narrowed = DType::F32;
  for (StreamedTensor& tensor : model.tensors) {
    const bool matrix =
        tensor.shape.size() == 2 && checkpoint::convertible(tensor.dtype, DType::F32);
    if (matrix && tensor.aliases.empty() &&
        layers.linear.contains(layers.map->without_base(tensor.name))) {
      narrowed = tensor.dtype;
      add_parts(std::move(tensor), out);
      continue;
    }
    if (matrix) keep(tensor.name);
    for (const std::string& alias : tensor.aliases)
      keep(alias);
    out.push_back(std::move(tensor));
  }
  model.tensors = std::move(out);
  json::Value skipped = json::Value::array();
  for (const std::string& name : unchanged)
    skipped.push_back(json::Value::string(name));
  config["quantization_config"] =
      json::Value::object({{"quant_method", json::Value::string("bitsandbytes")},
                           {"load_in_4bit", json::Value::boolean(true)},
                           {"load_in_8bit", json::Value::boolean(false)},
                           {"bnb_4bit_quant_type", json::Value::string("nf4")},
                           {"bnb_4bit_use_double_quant", json::Value::boolean(true)},
                           {"bnb_4bit_compute_dtype", json::Value::string(torch_type(narrowed))},
                           {"bnb_4bit_quant_storage", json::Value::string("uint8")},
                           {"llm_int8_skip_modules", std::move(skipped)}});
  file->second = config.dump(2) + "\n";
}

}  // namespace tessera::interop

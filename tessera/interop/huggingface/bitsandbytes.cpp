// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/bitsandbytes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/config/json.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop {
namespace {

using checkpoint::StreamedTensor;

constexpr std::string_view kState = ".quant_state.bitsandbytes__";
constexpr std::array<std::string_view, 4> kParts = {
    ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"};
constexpr std::string_view kRowScales = ".SCB", kRowFormat = ".weight_format", kWeight = ".weight";
/// Most bytes of a description; those of bitsandbytes have about 200.
constexpr std::uint64_t kMostState = 1 << 16;
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;
/// Elements that are decoded at a time: whole blocks of every supported size.
constexpr std::int64_t kPiece = 4096;

[[noreturn]] void refuse_damage(const Weight& weight, const std::string& why) {
  throw Error(Error::Kind::Format,
              fmt::format("{}: {}: {}", weight.file.string(), weight.name, why),
              "save the model again, or take its weights in 16 bits");
}

using Weights = std::map<std::string, const Weight*, std::less<>>;

const Weight& part_of(const Weights& weights, const Weight& weight, const std::string& suffix) {
  const auto found = weights.find(weight.name + suffix);
  if (found == weights.end()) refuse_damage(weight, "there is no " + weight.name + suffix);
  return *found->second;
}

void require_kind(const Weight& part, DType dtype, std::int64_t numel) {
  if (part.dtype == dtype && part.numel() == numel && part.contiguous()) return;
  refuse_damage(part,
                fmt::format("{} elements of {}, expected {} of {}",
                            part.numel(),
                            name(part.dtype),
                            numel,
                            name(dtype)));
}

std::vector<float> floats_of(const Weight& part, std::int64_t numel) {
  require_kind(part, DType::F32, numel);
  std::vector<float> out(static_cast<std::size_t>(numel));
  part.copy(0, numel, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

std::int64_t blocks_in(std::int64_t count, std::int64_t block) {
  return (count + block - 1) / block;
}

/// A matrix stored in four bits.
struct FourBits {
  Weight codes, scales;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0, block = 0;
  std::vector<float> values;  ///< 16
  // The following fields are used if scales are stored in eight bits.
  bool nested = false;
  std::vector<float> scale_values, scale_scales;
  std::int64_t scale_block = 0;
  float scale_mean = 0.0F;

  /// Reads the scales of blocks [begin, end).
  void read_scales(std::int64_t begin, std::int64_t end, float* out) const {
    if (!nested) return scales.copy(begin, end, reinterpret_cast<std::byte*>(out));
    std::array<std::uint8_t, kPiece> bytes{};
    TESSERA_ASSERT(end - begin <= kPiece);
    scales.copy(begin, end, reinterpret_cast<std::byte*>(bytes.data()));
    for (std::int64_t b = begin; b < end; ++b) {
      const auto in_piece = static_cast<std::size_t>(b - begin);
      const float factor = scale_scales[static_cast<std::size_t>(b / scale_block)];
      out[in_piece] = scale_values[bytes[in_piece]] * factor + scale_mean;
    }
  }

  void read(std::int64_t begin, std::int64_t end, std::byte* out) const {
    std::array<std::uint8_t, kPiece / 2 + 1> bytes{};
    std::array<float, kPiece / 32 + 2> factors{};
    std::array<float, kPiece> piece{};
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t stop = std::min(end, at + kPiece);
      const std::int64_t first_byte = at / 2, first_block = at / block;
      codes.copy(first_byte, (stop + 1) / 2, reinterpret_cast<std::byte*>(bytes.data()));
      read_scales(first_block, blocks_in(stop, block), factors.data());
      for (std::int64_t i = at; i < stop; ++i) {
        const unsigned byte = bytes[static_cast<std::size_t>(i / 2 - first_byte)];
        const unsigned code = i % 2 == 0 ? byte >> 4 : byte & 15U;
        piece[static_cast<std::size_t>(i - at)] =
            values[code] * factors[static_cast<std::size_t>(i / block - first_block)];
      }
      const std::size_t count = static_cast<std::size_t>(stop - at) * sizeof(float);
      std::memcpy(out, piece.data(), count);
      out += count;
      at = stop;
    }
  }
};

std::int64_t whole_number(const json::Value& state, const char* key, const Weight& weight) {
  const json::Value* const value = state.find(key);
  const auto number = value != nullptr ? value->as_integer() : std::nullopt;
  if (!number || *number < 1)
    refuse_damage(weight, fmt::format("{} is not a positive number", key));
  return *number;
}

std::int64_t block_size(const json::Value& state, const char* key, const Weight& weight) {
  const std::int64_t size = whole_number(state, key, weight);
  if (size < 32 || size > kPiece || (size & (size - 1)) != 0)
    refuse_damage(weight, fmt::format("{} {} is not a size of a block", key, size));
  return size;
}

std::vector<std::int64_t> shape_in(const json::Value& state, const Weight& weight) {
  const json::Value* const shape = state.find("shape");
  if (shape == nullptr || !shape->is_array() || shape->items().empty() || shape->items().size() > 8)
    refuse_damage(weight, "shape is not a list of sizes");
  std::vector<std::int64_t> out;
  std::int64_t numel = 1;
  for (const json::Value& item : shape->items()) {
    const auto size = item.as_integer();
    if (!size || *size < 1 || *size > kMostElements / numel)
      refuse_damage(weight, "shape is not a list of sizes");
    numel *= *size;
    out.push_back(*size);
  }
  return out;
}

json::Value state_of(const Weight& state) {
  if (state.dtype != DType::U8 || state.bytes() > kMostState || !state.contiguous())
    refuse_damage(state, "is not a quantization state of type U8");
  std::string text(state.bytes(), '\0');
  state.copy(0, state.numel(), reinterpret_cast<std::byte*>(text.data()));
  json::Value out = json::parse_strict(text, state.file.string() + ": " + state.name);
  if (!out.is_object()) refuse_damage(state, "is not an object");
  return out;
}

FourBits four_bits(const Weight& weight, const Weight& described, const Weights& weights) {
  const json::Value state = state_of(described);
  FourBits out;
  out.shape = shape_in(state, described);
  out.numel = 1;
  for (const std::int64_t size : out.shape)
    out.numel *= size;
  out.block = block_size(state, "blocksize", described);
  out.codes = weight;
  require_kind(out.codes, DType::U8, blocks_in(out.numel, 2));
  const std::int64_t blocks = blocks_in(out.numel, out.block);
  out.scales = part_of(weights, weight, ".absmax");
  out.values = floats_of(part_of(weights, weight, ".quant_map"), 16);
  out.nested = weights.contains(weight.name + ".nested_absmax");
  require_kind(out.scales, out.nested ? DType::U8 : DType::F32, blocks);
  if (!out.nested) return out;
  out.scale_block = block_size(state, "nested_blocksize", described);
  out.scale_scales =
      floats_of(part_of(weights, weight, ".nested_absmax"), blocks_in(blocks, out.scale_block));
  out.scale_values = floats_of(part_of(weights, weight, ".nested_quant_map"), 256);
  const json::Value* const mean = state.find("nested_offset");
  if (mean == nullptr || !mean->is_number())
    refuse_damage(described, "nested_offset is not a number");
  out.scale_mean = static_cast<float>(mean->as_double());
  return out;
}

/// Returns a matrix stored in eight bits, with a scale for each row.
StreamedTensor eight_bits(const Weight& weight, const Weight& scales) {
  if (weight.dtype != DType::I8 || weight.shape.size() != 2 || !weight.contiguous())
    refuse_damage(weight, "is not a matrix of int8");
  const std::int64_t columns = weight.shape.back();
  const auto read = [weight, columns, factors = floats_of(scales, weight.shape.front())](
                        std::int64_t begin, std::int64_t end, std::byte* out) {
    std::array<std::int8_t, kPiece> codes{};
    std::array<float, kPiece> piece{};
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t stop = std::min(end, at + kPiece);
      weight.copy(at, stop, reinterpret_cast<std::byte*>(codes.data()));
      for (std::int64_t i = at; i < stop; ++i) {
        const auto in_piece = static_cast<std::size_t>(i - at);
        piece[in_piece] = static_cast<float>(codes[in_piece]) *
                          factors[static_cast<std::size_t>(i / columns)] * (1.0F / 127.0F);
      }
      const std::size_t bytes = static_cast<std::size_t>(stop - at) * sizeof(float);
      std::memcpy(out, piece.data(), bytes);
      out += bytes;
      at = stop;
    }
  };
  return {weight.name, DType::F32, weight.shape, read, {}, [weight] { weight.release(); }};
}

/// Returns nullptr if the weight is not in bitsandbytes' eight-bit format.
const Weight* row_scales_of(const Weight& weight, const Weights& weights) {
  if (weight.dtype != DType::I8 || !weight.name.ends_with(kWeight)) return nullptr;
  const std::string module = weight.name.substr(0, weight.name.size() - kWeight.size());
  const auto scales = weights.find(module + std::string(kRowScales));
  return scales == weights.end() ? nullptr : scales->second;
}

}  // namespace

bool is_bitsandbytes_part(std::string_view name) {
  return name.find(kState) != std::string_view::npos || name.ends_with(kRowScales) ||
         name.ends_with(kRowFormat) ||
         std::any_of(kParts.begin(), kParts.end(), [&](std::string_view part) {
           return name.ends_with(std::string(kWeight) + std::string(part));
         });
}

std::vector<StreamedTensor> with_bitsandbytes(const std::vector<Weight>& weights) {
  Weights by_name;
  std::map<std::string, const Weight*, std::less<>> states;  // by the weight that they describe
  for (const Weight& weight : weights) {
    by_name.emplace(weight.name, &weight);
    const std::size_t at = weight.name.find(kState);
    if (at == std::string::npos) continue;
    const std::string kind = weight.name.substr(at + kState.size());
    TESSERA_REQUIRE(
        kind == "nf4" || kind == "fp4",
        Unsupported,
        fmt::format(
            "{}: {}: not built yet: {} of bitsandbytes", weight.file.string(), weight.name, kind),
        "save the model with nf4, or in 16 bits");
    states.emplace(weight.name.substr(0, at), &weight);
  }
  std::vector<StreamedTensor> out;
  for (const Weight& weight : weights) {
    if (is_bitsandbytes_part(weight.name)) continue;
    if (const auto state = states.find(weight.name); state != states.end()) {
      const auto four =
          std::make_shared<const FourBits>(four_bits(weight, *state->second, by_name));
      out.push_back({weight.name,
                     DType::F32,
                     four->shape,
                     [four](std::int64_t begin, std::int64_t end, std::byte* to) {
                       four->read(begin, end, to);
                     },
                     {},
                     [weight] { weight.release(); }});
      continue;
    }
    const Weight* const scales = row_scales_of(weight, by_name);
    out.push_back(scales != nullptr ? eight_bits(weight, *scales) : stream(weight, weight.name));
  }
  return out;
}

bool drop_bitsandbytes(json::Value& hf_config) {
  constexpr std::string_view kSection = "quantization_config";
  const json::Value* const said = hf_config.find(kSection);
  const json::Value* const method =
      said != nullptr && said->is_object() ? said->find("quant_method") : nullptr;
  if (method == nullptr || !method->is_string() || method->as_string() != "bitsandbytes")
    return false;
  std::erase_if(hf_config.members(),
                [&](const json::Value::Member& member) { return member.first == kSection; });
  return true;
}

}  // namespace tessera::interop

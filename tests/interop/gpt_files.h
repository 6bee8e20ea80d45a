// SPDX-License-Identifier: Apache-2.0
// A small GPT-2 of known values in Hugging Face's layout, and a writer of torch files, for tests
// that write it in the formats of other programs.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "interop/torch/torch_bytes.h"
#include <fmt/format.h>

#include "tessera/base/dtype.h"
#include "tessera/base/files.h"

namespace tessera::interop::test::gpt {

using Members = std::vector<std::pair<std::string, std::string>>;

struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
/// Tensors by Hugging Face's names, without "transformer.".
using Model = std::map<std::string, Tensor>;

inline constexpr std::int64_t kLayers = 4, kWidth = 8, kHeads = 4, kPositions = 6, kInner = 16;
inline constexpr std::int64_t kVocab = 10;

/// Returns one of several models whose elements are all different numbers, exact in fp32.
inline Model model_of(int set, std::int64_t inner = kInner) {
  Model out;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape)
      count *= size;
    Tensor tensor{std::move(shape), {}};
    const auto first = static_cast<std::int64_t>(set * 20'000 + out.size() * 256);
    for (std::int64_t i = 0; i < count; ++i)
      tensor.values.push_back(static_cast<float>(first + i));
    out.emplace(name, std::move(tensor));
  };
  add("wte.weight", {kVocab, kWidth});
  add("wpe.weight", {kPositions, kWidth});
  add("lm_head.weight", {kVocab, kWidth});
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const std::string h = fmt::format("h.{}.", i);
    for (const char* norm : {"ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"})
      add(h + norm, {kWidth});
    add(h + "attn.c_attn.weight", {kWidth, 3 * kWidth});
    add(h + "attn.c_attn.bias", {3 * kWidth});
    add(h + "attn.c_proj.weight", {kWidth, kWidth});
    add(h + "attn.c_proj.bias", {kWidth});
    add(h + "mlp.c_fc.weight", {kWidth, inner});
    add(h + "mlp.c_fc.bias", {inner});
    add(h + "mlp.c_proj.weight", {inner, kWidth});
    add(h + "mlp.c_proj.bias", {kWidth});
  }
  add("ln_f.weight", {kWidth});
  add("ln_f.bias", {kWidth});
  return out;
}

inline std::string number(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  std::string out = "G";
  for (int shift = 56; shift >= 0; shift -= 8)
    out += static_cast<char>((bits >> shift) & 0xFF);
  return out;
}

/// Returns rows [row, row + rows) and columns [column, column + columns) of the transpose of
/// Hugging Face's [in, out].
inline Tensor turned(const Tensor& from,
                     std::int64_t row,
                     std::int64_t rows,
                     std::int64_t column,
                     std::int64_t columns) {
  Tensor out{{rows, columns}, {}};
  for (std::int64_t r = row; r < row + rows; ++r) {
    for (std::int64_t c = column; c < column + columns; ++c)
      out.values.push_back(from.values[static_cast<std::size_t>(c * from.shape[1] + r)]);
  }
  return out;
}
inline Tensor slice(const Tensor& from, std::int64_t begin, std::int64_t count) {
  return {{count}, {from.values.begin() + begin, from.values.begin() + begin + count}};
}
/// Builds one file.
class File {
 public:
  /// In bf16 the value is rounded; in fp16 the value is used as the bit pattern, so that all
  /// elements differ.
  std::string tensor(const Tensor& tensor, DType dtype = DType::F32) {
    std::string bytes;
    for (const float value : tensor.values) {
      const std::uint16_t narrow =
          dtype == DType::BF16 ? to_bf16(value) : static_cast<std::uint16_t>(value);
      if (dtype == DType::F32) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
      } else {
        bytes.append(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
      }
    }
    const char* const kind = dtype == DType::F32    ? "FloatStorage"
                             : dtype == DType::BF16 ? "BFloat16Storage"
                                                    : "HalfStorage";
    std::vector<std::int64_t> strides(tensor.shape.size(), 1);
    for (std::size_t d = strides.size(); d-- > 1;)
      strides[d - 1] = strides[d] * tensor.shape[d];
    storages_.push_back(bytes);
    return op::tensor(op::storage(kind,
                                  std::to_string(storages_.size() - 1),
                                  static_cast<std::int64_t>(tensor.values.size())),
                      0,
                      tensor.shape,
                      strides);
  }
  void write(const std::filesystem::path& path, const Members& members) {
    std::filesystem::create_directories(path.parent_path());
    files::write_atomic(path, torch_zip(pickle_of(op::dict(members)), storages_));
  }

 private:
  std::vector<std::string> storages_;
};

}  // namespace tessera::interop::test::gpt

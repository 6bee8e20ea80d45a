// SPDX-License-Identifier: Apache-2.0
// A GPT-2 as llm.c's write_model() writes it, and its token files, constructed by hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interop/gpt_files.h"
#include <fmt/format.h>

namespace tessera::interop::test::llmc {

inline constexpr std::int64_t kPadded = 12;

/// Returns a header of 256 32-bit numbers.
inline std::string header(std::vector<std::int32_t> numbers) {
  numbers.resize(256, 0);
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::int32_t)};
}

/// Versions 1 and 3 are fp32, 5 is bf16 (each value is then its bit pattern); 1 has no padding.
/// llm.c only supports an MLP of four times the width, so `model` must have that.
inline std::string file(const gpt::Model& model, std::int32_t version) {
  const bool half = version == 5;
  const auto size = [&](const std::string& name, std::size_t dim) {
    return static_cast<std::int32_t>(model.at(name).shape[dim]);
  };
  std::string out = header({20240326,
                            version,
                            size("wpe.weight", 0),
                            size("wte.weight", 0),
                            static_cast<std::int32_t>(gpt::kLayers),
                            static_cast<std::int32_t>(gpt::kHeads),
                            size("wte.weight", 1),
                            version == 1 ? 0 : static_cast<std::int32_t>(kPadded)});
  const auto add = [&](const gpt::Tensor& tensor) {
    for (const float value : tensor.values) {
      const auto narrow = static_cast<std::uint16_t>(value);
      if (half) {
        out.append(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
      } else {
        out.append(reinterpret_cast<const char*>(&value), sizeof(value));
      }
    }
  };
  const auto layers = [&](const std::string& name) {
    for (std::int64_t i = 0; i < gpt::kLayers; ++i) {
      const gpt::Tensor& tensor = model.at(fmt::format("h.{}.{}", i, name));
      add(tensor.shape.size() == 1 ? tensor
                                   : gpt::turned(tensor, 0, tensor.shape[1], 0, tensor.shape[0]));
    }
  };
  gpt::Tensor table = model.at("wte.weight");
  if (version != 1) table.values.resize(static_cast<std::size_t>(kPadded * table.shape[1]), 7.0F);
  add(table);
  add(model.at("wpe.weight"));
  for (const char* name : {"ln_1.weight",
                           "ln_1.bias",
                           "attn.c_attn.weight",
                           "attn.c_attn.bias",
                           "attn.c_proj.weight",
                           "attn.c_proj.bias",
                           "ln_2.weight",
                           "ln_2.bias",
                           "mlp.c_fc.weight",
                           "mlp.c_fc.bias",
                           "mlp.c_proj.weight",
                           "mlp.c_proj.bias"})
    layers(name);
  add(model.at("ln_f.weight"));
  add(model.at("ln_f.bias"));
  return out;
}

/// Returns tokens of GPT-2 (two bytes each) or of Llama 3 (four).
inline std::string tokens(const std::vector<std::uint32_t>& ids, bool llama) {
  std::string out =
      header({llama ? 20240801 : 20240520, llama ? 7 : 1, static_cast<std::int32_t>(ids.size())});
  for (const std::uint32_t id : ids)
    out += le(id, llama ? 4 : 2);
  return out;
}

}  // namespace tessera::interop::test::llmc

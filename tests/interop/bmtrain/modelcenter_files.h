// SPDX-License-Identifier: Apache-2.0
// A GPT2 of ModelCenter as bmtrain.save writes it, constructed by hand.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "interop/gpt_files.h"
#include <fmt/format.h>

#include "tessera/base/dtype.h"
#include "tessera/base/files.h"

namespace tessera::interop::test::modelcenter {

struct Options {
  DType dtype = DType::F32;
  std::string config = R"({"num_heads": 4, "norm_eps": 1e-6, "tied": true})";
  bool head = false;
  std::vector<std::string> more;  ///< names of further tensors
};

/// Writes pytorch_model.pt and its config.json.
inline void write(const std::filesystem::path& folder,
                  const gpt::Model& model,
                  const Options& options) {
  gpt::File file;
  gpt::Members out;
  const auto add = [&](const std::string& name, const gpt::Tensor& tensor) {
    out.emplace_back(name, file.tensor(tensor, options.dtype));
  };
  const auto pair = [&](const std::string& name,
                        const std::string& ours,
                        std::int64_t first,
                        std::int64_t rows,
                        std::int64_t columns) {
    add(name + ".weight", gpt::turned(model.at(ours + ".weight"), first, rows, 0, columns));
    add(name + ".bias", gpt::slice(model.at(ours + ".bias"), first, rows));
  };
  add("input_embedding.weight", model.at("wte.weight"));
  add("position_embedding.weight", model.at("wpe.weight"));
  for (std::int64_t i = 0; i < gpt::kLayers; ++i) {
    const std::string theirs = fmt::format("encoder.layers.{}.", i), ours = fmt::format("h.{}.", i);
    const std::string attention = theirs + "self_att.self_attention.";
    for (const char* part : {"weight", "bias"}) {
      add(theirs + "self_att.layernorm_before_attention." + part, model.at(ours + "ln_1." + part));
      add(theirs + "ffn.layernorm_before_ffn." + part, model.at(ours + "ln_2." + part));
    }
    std::int64_t first = 0;
    for (const char* which : {"project_q", "project_k", "project_v"}) {
      pair(attention + which, ours + "attn.c_attn", first, gpt::kWidth, gpt::kWidth);
      first += gpt::kWidth;
    }
    pair(attention + "attention_out", ours + "attn.c_proj", 0, gpt::kWidth, gpt::kWidth);
    pair(theirs + "ffn.ffn.w_in.w", ours + "mlp.c_fc", 0, gpt::kInner, gpt::kWidth);
    pair(theirs + "ffn.ffn.w_out", ours + "mlp.c_proj", 0, gpt::kWidth, gpt::kInner);
  }
  add("encoder.output_layernorm.weight", model.at("ln_f.weight"));
  add("encoder.output_layernorm.bias", model.at("ln_f.bias"));
  if (options.head) add("output_projection.weight", model.at("lm_head.weight"));
  for (const std::string& name : options.more)
    add(name, {{1}, {0}});
  file.write(folder / "pytorch_model.pt", out);
  files::write_atomic(folder / "config.json", options.config);
}

}  // namespace tessera::interop::test::modelcenter

// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/model_source.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/fields.h"

namespace tessera::planner {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 12> kShapeKeys = {"preset",
                                                         "num_layers",
                                                         "hidden_size",
                                                         "num_heads",
                                                         "vocab_size",
                                                         "max_positions",
                                                         "ffn_hidden_size",
                                                         "mlp_ratio",
                                                         "qkv_bias",
                                                         "tie_embeddings",
                                                         "activation",
                                                         "layer_norm_eps"};

ModelSource open_hugging_face(const fs::path& folder, const json::Value& hf) {
  const json::Value* type = hf.find("model_type");
  TESSERA_REQUIRE(type != nullptr && type->is_string(),
                  Format,
                  fmt::format("{}/config.json has no model_type", folder.string()),
                  "name a Hugging Face folder, or a run or checkpoint of tessera");
  ModelSource out;
  out.folder = folder;
  out.hugging_face = true;
  out.family = type->as_string();
  TESSERA_REQUIRE(
      models::families().has(out.family),
      Unsupported,
      fmt::format(
          "not built yet: models of type \"{}\" ({}/config.json)", out.family, folder.string()),
      "the families are: " + text::join(models::families().names(), ", "));
  models::ModelOptions options = models::families().get(out.family).options_from_hf(hf);
  options.family = out.family;
  out.model = config::write(options);
  return out;
}

ModelSource open_checkpoint(const fs::path& folder) {
  const checkpoint::Checkpoint opened(folder);
  const json::Value& config = opened.meta().config;
  const json::Value* model = config.find("model");
  TESSERA_REQUIRE(model != nullptr && model->is_object(),
                  Format,
                  fmt::format("{}: its configuration has no model", folder.string()),
                  "name another checkpoint");
  ModelSource out;
  out.folder = folder;
  out.model = *model;
  const json::Value* family = model->find("family");
  out.family = family != nullptr && family->is_string() ? family->as_string() : "gpt2";
  if (const json::Value* tokenizer = config.find("tokenizer")) {
    config::Problems problems;
    config::Origins origins;
    config::read(*tokenizer, out.tokenizer, problems, origins);
    problems.raise();
  }
  return out;
}

// A checkpoint as a source of weights: the range that is asked for is one piece of the whole
// tensor.
void load_range(const checkpoint::Checkpoint& from,
                const ParamInfo& info,
                std::int64_t begin,
                std::int64_t end,
                float* out) {
  const std::size_t bytes = static_cast<std::size_t>(end - begin) * sizeof(float);
  checkpoint::PieceBytes piece;
  piece.name = info.name;
  piece.shape = info.shape;
  piece.piece = {mesh::whole(info.shape), begin, end};
  piece.bytes = {reinterpret_cast<std::byte*>(out), bytes};
  from.load(std::span(&piece, 1));
}

}  // namespace

ModelSource open_model_source(const fs::path& path) {
  TESSERA_REQUIRE(fs::is_directory(path),
                  Config,
                  fmt::format("there is no folder {}", path.string()),
                  "name a Hugging Face folder, or a run or checkpoint of tessera");
  if (fs::exists(path / "manifest.json")) return open_checkpoint(path);
  if (fs::is_directory(path / "checkpoints")) {
    const auto newest = checkpoint::newest(path / "checkpoints");
    TESSERA_REQUIRE(newest.has_value(),
                    Format,
                    fmt::format("the run {} has no complete checkpoint", path.string()),
                    "name another run");
    return open_checkpoint(*newest);
  }
  const fs::path file = path / "config.json";
  TESSERA_REQUIRE(fs::exists(file),
                  Format,
                  fmt::format("{} has no config.json, manifest.json or checkpoints", path.string()),
                  "name a Hugging Face folder, or a run or checkpoint of tessera");
  return open_hugging_face(path, json::parse_strict(files::read(file), file.string()));
}

data::TokenizerPtr source_tokenizer(const ModelSource& source) {
  return source.hugging_face ? data::tokenizer_from_folder(source.folder)
                             : data::make_tokenizer(source.tokenizer);
}

models::WeightSource source_weights(const ModelSource& source, const models::Resolved& resolved) {
  if (source.hugging_face)
    return models::families().get(source.family).weights_from_hf(source.folder, resolved);
  auto opened = std::make_shared<const checkpoint::Checkpoint>(source.folder);
  return [opened](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    load_range(*opened, info, begin, end, out);
  };
}

json::Value merge_model(const json::Value& written,
                        const ModelSource& source,
                        config::Problems& problems) {
  json::Value out = source.model;
  if (!written.is_object()) return out;
  for (const auto& [key, value] : written.members()) {
    const json::Value* theirs = source.model.find(key);
    const bool shape = std::find(kShapeKeys.begin(), kShapeKeys.end(), key) != kShapeKeys.end();
    if (shape && (theirs == nullptr || !(*theirs == value))) {
      problems.add(value.place,
                   "model." + key,
                   theirs == nullptr
                       ? "the model of model.from decides this"
                       : fmt::format("is {}, but model.from has {}", value.dump(), theirs->dump()),
                   "remove the key");
      continue;
    }
    out[key] = value;
  }
  return out;
}

}  // namespace tessera::planner

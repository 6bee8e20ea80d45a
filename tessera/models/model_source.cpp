// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/model_source.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/hub.h"
#include "tessera/base/inputs.h"
#include "tessera/base/text.h"
#include "tessera/models/hf_objective.h"
#include "tessera/tensor/init.h"

namespace tessera::models {
namespace {

const ModelReader& reader() {
  return model_readers().get("files");
}

/// Notes the files of a model; if they cannot be listed, their reader says why.
template <class List>
void note(const char* what, const std::filesystem::path& place, const List& list) {
  try {
    note_input({what, place.string(), list()});
  } catch (const Error&) {
  }
}

}  // namespace

Registry<ModelReader>& model_readers() {
  static Registry<ModelReader> registry("reader of models");
  return registry;
}

ModelSource open_model_source(const std::filesystem::path& named) {
  const std::filesystem::path path = hub::model_path(named.string());
  ModelSource source = reader().open(path);
  note("model", path, [&] { return reader().files(source); });
  return source;
}

WeightSource source_weights(const ModelSource& source, const Resolved& resolved) {
  return reader().weights(source, resolved);
}

AdapterOptions open_adapter_options(const std::filesystem::path& folder) {
  AdapterOptions options = reader().adapter_options(folder);
  note("adapter", folder, [&] { return reader().adapter_files(folder); });
  return options;
}

WeightSource open_adapter_weights(const std::filesystem::path& folder,
                                  const Adapter& adapter,
                                  const WeightMap& map) {
  return reader().adapter_weights(folder, adapter, map);
}

WeightSource first_weights(const ModelSource& source,
                           const Resolved& trained,
                           std::uint64_t seed,
                           std::vector<std::string>& notes) {
  if (trained.objective.name == kEmbedding && source.adapter.empty())
    return source_weights(source, trained);
  // A checkpoint without an objective has its family's default.
  config::Problems problems;
  const Resolved saved =
      resolve(source.model, trained.tokenizer_size, std::nullopt, problems, {}, source.objective);
  problems.raise();
  const bool same = saved.objective.name == trained.objective.name;
  // Classifiers of one kind may have different numbers of classes.
  if (same && trained.objective.options.find("num_labels") == nullptr)
    return source_weights(source, trained);
  std::map<std::string, std::vector<std::int64_t>> known;
  std::set<std::string> begun;
  for (const auto& info : nn::parameters_of(saved.model))
    known.emplace(info->name, info->shape);
  for (const auto& info :
       same ? nn::declared_by(trained.model.blocks.back()) : nn::parameters_of(trained.model)) {
    const auto found = known.find(info->name);
    if (found == known.end() || (same && found->second != info->shape)) begun.insert(info->name);
  }
  if (same && begun.empty()) return source_weights(source, trained);
  if (!begun.empty()) {
    notes.push_back(
        fmt::format("model.from has a head for {}: {} starts from new weights ({})",
                    same ? "another number of classes" : saved.objective.name,
                    same ? "the new one" : "that for " + trained.objective.name,
                    text::join(std::vector<std::string>(begun.begin(), begun.end()), ", ")));
  }
  return [weights = source_weights(source, saved), begun = std::move(begun), seed](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    if (begun.count(info.name) == 0) return weights(info, begin, end, out);
    initialize_range(info, seed, begin, at::from_blob(out, {end - begin}, at::kFloat));
  };
}

text::TokenizerPtr source_tokenizer(const ModelSource& source) {
  TESSERA_REQUIRE(
      source.says_tokenizer,
      Config,
      fmt::format("{} was converted from weights without a tokenizer", source.folder.string()),
      "name one with tokenizer.type (and tokenizer.vocab, tokenizer.merges)");
  return source.hugging_face ? text::tokenizer_from_folder(source.folder)
                             : text::make_tokenizer(source.tokenizer);
}

}  // namespace tessera::models

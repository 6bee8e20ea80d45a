// SPDX-License-Identifier: Apache-2.0
// `model.from`: the model that a training starts from, as the planner needs to know it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/data/tokenizer.h"
#include "tessera/models/adapter.h"
#include "tessera/models/family.h"

namespace tessera::planner {

/// The description of a saved model. No weights are read before `weights` is called.
struct ModelSource {
  std::filesystem::path folder;   ///< the Hugging Face folder, or the checkpoint
  std::filesystem::path weights;  ///< of Hugging Face: that folder, or a single file of weights
  bool hugging_face = false;      ///< config.json and the tokenizer are in Hugging Face's format
  std::optional<std::filesystem::path> foreign;  ///< the checkpoint of another program
  models::ModelOptions model;                    ///< the options that describe the saved model
  models::ObjectiveChoice objective;  ///< of the saved model; no name: the family's usual one
  data::TokenizerOptions tokenizer;   ///< of a run of tessera
  /// Where the weights are those of a base with an adapter: the folder of PEFT's or the checkpoint
  /// that holds the adapter, and what it adapts. The model is then the merged one.
  std::filesystem::path adapter;
  models::AdapterOptions adapter_options;
  std::shared_ptr<const ModelSource> base;  ///< nullptr: the checkpoint holds the base too
  std::string base_fingerprint;             ///< that the base has to have; empty: any
  std::uint64_t seed = 0;                   ///< of what the base lacks
  std::string chat_template;                ///< that its task names; empty: none
  bool says_tokenizer = true;  ///< false: a checkpoint that was converted without a tokenizer
  bool bf16 = false;           ///< the weights were trained, or are stored, in bf16
};

/// Reads model sources. The planner knows no file format: interop/ registers the one reader.
struct ModelReader {
  /// Errors: Error{Config} if nothing is at the path, Error{Format} for a damaged or missing
  /// description, Error{Unsupported} for a model type or key that is not built.
  ModelSource (*open)(const std::filesystem::path& path);
  /// The weights under our parameter names; nothing is read before the first call. Error{Format}
  /// lists missing, unexpected and mis-shaped tensors.
  models::WeightSource (*weights)(const ModelSource& source, const models::Resolved& resolved);
  /// An adapter that another program saved: its options, and its values.
  models::AdapterOptions (*adapter_options)(const std::filesystem::path& folder);
  models::WeightSource (*adapter_weights)(const std::filesystem::path& folder,
                                          const models::Adapter& adapter,
                                          const models::WeightMap& map);
};
Registry<ModelReader>& model_readers();

/// Opens what `model.from` names, with the registered reader; errors as ModelReader::open.
ModelSource open_model_source(const std::filesystem::path& path);
/// The weights of a source; errors as ModelReader::weights.
models::WeightSource source_weights(const ModelSource& source, const models::Resolved& resolved);
/// The first weights of `trained`, which begins as the saved model: where it has another objective,
/// what the saved model lacks (a head) is initialised from the seed as in a new model. Adds a note
/// that says so. Errors as ModelReader::weights.
models::WeightSource first_weights(const ModelSource& source,
                                   const models::Resolved& trained,
                                   std::uint64_t seed,
                                   std::vector<std::string>& notes);
/// The options of an adapter in a folder of another program's; errors as open_model_source.
models::AdapterOptions open_adapter_options(const std::filesystem::path& folder);
/// What that folder has of Adapter::parameters. Error{Format} where it does not fit.
models::WeightSource open_adapter_weights(const std::filesystem::path& folder,
                                          const models::Adapter& adapter,
                                          const models::WeightMap& map);
/// The tokenizer that belongs to the source. Error{Config} if it was converted without one.
data::TokenizerPtr source_tokenizer(const ModelSource& source);

}  // namespace tessera::planner

// SPDX-License-Identifier: Apache-2.0
// `model.from`: the model from which a training starts, as far as the planner needs it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/models/adapter.h"
#include "tessera/models/family.h"
#include "tessera/text/tokenizer.h"

namespace tessera::models {

/// The description of a saved model. No weights are read before `weights` is called.
struct ModelSource {
  std::filesystem::path folder;   ///< the Hugging Face folder, or the checkpoint
  std::filesystem::path weights;  ///< the Hugging Face folder, or a single file of weights
  /// Which checkpoint of the run that was named is read, and why; empty: there was no choice.
  std::string chosen;
  bool hugging_face = false;  ///< config.json and the tokenizer are in Hugging Face's format
  std::optional<std::filesystem::path> foreign;  ///< the checkpoint of another program
  ModelOptions model;                            ///< the options that describe the saved model
  /// Objective of the saved model; no name: the family's default.
  ObjectiveChoice objective;
  text::TokenizerOptions tokenizer;  ///< only for a run of tessera
  /// If the weights are a base with an adapter: the folder of PEFT, or the checkpoint, with the
  /// adapter, and the base that it adapts. The model is then the merged one.
  std::filesystem::path adapter;
  AdapterOptions adapter_options;
  std::shared_ptr<const ModelSource> base;  ///< nullptr: the checkpoint also contains the base
  std::string base_fingerprint;             ///< required fingerprint of the base; empty: any
  std::uint64_t seed = 0;                   ///< seed for what the base lacks
  std::string chat_template;                ///< chat template that its task names; empty: none
  /// The preprocessing of images that its task names; see tasks::preprocessing_name_of().
  std::optional<std::string> preprocessing;
  bool says_tokenizer = true;  ///< false: a checkpoint that was converted without a tokenizer
  bool bf16 = false;           ///< the weights were trained, or are stored, in bf16
};

/// The interface for reading model sources. The planner knows no file format: interop/ registers
/// the only reader.
struct ModelReader {
  /// Throws Error{Config} if there is nothing at the path, Error{Format} for a damaged or missing
  /// description, and Error{Unsupported} for a model type or key that is not implemented.
  ModelSource (*open)(const std::filesystem::path& path);
  /// The weights under tessera's parameter names; nothing is read before the first call. Throws
  /// Error{Format} that lists missing, unexpected and mis-shaped tensors.
  WeightSource (*weights)(const ModelSource& source, const Resolved& resolved);
  /// Reads the options and values of an adapter that another program saved.
  AdapterOptions (*adapter_options)(const std::filesystem::path& folder);
  WeightSource (*adapter_weights)(const std::filesystem::path& folder,
                                  const Adapter& adapter,
                                  const WeightMap& map);
  /// The files that decide the model and its weights. A checkpoint of tessera has its manifest,
  /// which holds the checksums of all others.
  std::vector<std::filesystem::path> (*files)(const ModelSource& source);
  /// The files of an adapter that another program saved.
  std::vector<std::filesystem::path> (*adapter_files)(const std::filesystem::path& folder);
};
Registry<ModelReader>& model_readers();

/// Opens what `model.from` names, a path or a name of hub::find_model(), with the registered
/// reader, and notes its files (base/inputs.h); throws the errors of ModelReader::open.
ModelSource open_model_source(const std::filesystem::path& named);
/// The weights of a source; throws the errors of ModelReader::weights.
WeightSource source_weights(const ModelSource& source, const Resolved& resolved);
/// The initial weights of `trained`, which starts from the saved model: if its objective or its
/// number of classes differs, parameters that the saved model lacks (a head) are initialized from
/// the seed as in a new model, and a note is added. Throws the errors of ModelReader::weights.
WeightSource first_weights(const ModelSource& source,
                           const Resolved& trained,
                           std::uint64_t seed,
                           std::vector<std::string>& notes);
/// The options of an adapter in another program's folder, whose files are noted; throws the errors
/// of open_model_source.
AdapterOptions open_adapter_options(const std::filesystem::path& folder);
/// The values in that folder for Adapter::parameters. Throws Error{Format} if they do not fit.
WeightSource open_adapter_weights(const std::filesystem::path& folder,
                                  const Adapter& adapter,
                                  const WeightMap& map);
/// The tokenizer that belongs to the source. Throws Error{Config} if it was converted without one.
text::TokenizerPtr source_tokenizer(const ModelSource& source);

}  // namespace tessera::models

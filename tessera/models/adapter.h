// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters for a model of any family. Modules have the names of Hugging Face's files,
// given by the family's weight map. If one parameter contains several modules, each can have its
// own adapter.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tessera/models/adapter_options.h"
#include "tessera/models/family.h"
#include "tessera/models/weight_map.h"
#include "tessera/nn/low_rank.h"

namespace tessera::models {

/// An adapter of one module.
struct AdapterModule {
  nn::LowRankPart part;  ///< with the module's name
  std::shared_ptr<const ParamInfo> weight;
  bool table = false;
  bool tied = false;        ///< a table by which the head multiplies too, without the adapter
  bool transposed = false;  ///< files store the weight [inputs, outputs]
  std::int64_t inputs = 0, outputs = 0;
  /// The module's row for each row of the parameter, in the order of the box; empty: the same.
  std::vector<std::int64_t> rows;
  /// The number of experts of a stacked weight, of which `inputs`, `outputs` and `rows` describe
  /// one; 0: another weight. A is then [experts, rank, inputs] and B [experts, outputs, rank].
  std::int64_t experts = 0;
  /// With experts: PEFT's module of each expert; or only one, for adapters of a stacked parameter.
  std::vector<std::string> stored;
  std::string parameter;  ///< this parameter's name in target_parameters; empty: not of this form

  // Names of the adapter's parameters.
  [[nodiscard]] std::string a() const;
  [[nodiscard]] std::string b() const;
  [[nodiscard]] std::string magnitude() const { return part.module + ".lora_magnitude_vector"; }
};

/// The adapters of a model.
struct Adapter {
  AdapterOptions options;
  std::vector<AdapterModule> modules;
  /// Parameters of the model that are trained as a whole and saved with the adapter:
  /// modules_to_save and biases.
  std::set<std::string> trained;
  /// Matrices of the model that are stored in fewer bits (options.quantize_base): those of all
  /// linear layers except the head and trained ones.
  std::set<std::string> quantized;
  /// All trained parameters, by name: the adapter's own, and those of the model.
  std::map<std::string, std::shared_ptr<const ParamInfo>> parameters;
  /// True if the parameter of that name, of the adapted model, is trained.
  [[nodiscard]] bool trains(const std::string& name) const;
};

/// The use of an adapter.
enum class AdapterUse : std::uint8_t {
  Computed,  ///< layers compute with it in addition to their weights, so that a head cannot have
             ///< one
  Merged,    ///< only its tensors are needed: for merged_weights(), and for files
};

/// Applies the options to a model without an adapter. Throws Error{Config} if no module matches, or
/// if a target or a module to save does not exist; throws Error{Unsupported} for modules that
/// cannot be adapted for this use.
Adapter find_adapter(const AdapterOptions& options,
                     const Resolved& model,
                     const WeightMap& map,
                     AdapterUse use = AdapterUse::Computed);

/// The model with the adapter: its blocks declare more parameters, and only those for which
/// Adapter::trains() is true are trained.
nn::Model adapted(const nn::Model& model, const Adapter& adapter);

/// The initial values of the parameters: adapter parameters by their Init from the seed, magnitudes
/// from the rows of `base`; other parameters as in `base`. Thread safety is that of `base`.
WeightSource first_adapter_weights(const Adapter& adapter, WeightSource base, std::uint64_t seed);

/// The weights of the equivalent model without an adapter: W + scale B A of `base`, with the norms
/// of its rows replaced by the magnitudes if there are any. `adapter_weights` provides the
/// adapter's trained parameters, under tessera's names. A, B and norms of a module are held in
/// memory while it is read. Thread safety is that of the sources. Throws Error{Unsupported} if a
/// module is tied, because no such model is equivalent.
WeightSource merged_weights(const Adapter& adapter,
                            WeightSource base,
                            WeightSource adapter_weights);

}  // namespace tessera::models

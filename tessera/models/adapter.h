// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters of a model of any family. Modules are named as in Hugging Face's files, by the
// family's weight map: where several of them lie in one parameter of ours, each can have an adapter
// of its own.
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
  nn::LowRankPart part;  ///< with the name of the module
  std::shared_ptr<const ParamInfo> weight;
  bool table = false;
  bool transposed = false;  ///< files store the weight [inputs, outputs]
  std::int64_t inputs = 0, outputs = 0;
  /// Row of the module that each row of ours is, in the order of the box; empty: the same.
  std::vector<std::int64_t> rows;

  // Names of its parameters.
  [[nodiscard]] std::string a() const;
  [[nodiscard]] std::string b() const;
  [[nodiscard]] std::string magnitude() const { return part.module + ".lora_magnitude_vector"; }
};

/// The adapters of a model.
struct Adapter {
  AdapterOptions options;
  std::vector<AdapterModule> modules;
  /// Parameters of the model that are trained whole, and saved with the adapter: modules_to_save
  /// and biases.
  std::set<std::string> trained;
  /// Matrices of the model that are kept in fewer bits, as options.quantize_base says: those of all
  /// linear layers but the head and what is trained.
  std::set<std::string> quantized;
  /// All that is trained, by name: the adapter's own parameters, and these.
  std::map<std::string, std::shared_ptr<const ParamInfo>> parameters;
  /// Whether the parameter of that name, of the adapted model, is trained.
  [[nodiscard]] bool trains(const std::string& name) const;
};

/// What the options mean for a model that has no adapter yet. Error{Config} where nothing fits
/// them, and for a target or a module to save that is not there; Error{Unsupported} for modules
/// that cannot be adapted, such as a head.
Adapter find_adapter(const AdapterOptions& options, const Resolved& model, const WeightMap& map);

/// The model with the adapter: its blocks declare more parameters, and nothing but what
/// Adapter::trains() says is trained.
nn::Model adapted(const nn::Model& model, const Adapter& adapter);

/// The first values of the adapter's parameters: by their Init from the seed, magnitudes from the
/// rows of `base`; of other parameters those of `base`. Threads: as `base`.
WeightSource first_adapter_weights(const Adapter& adapter, WeightSource base, std::uint64_t seed);

/// The weights of the plain model that computes the same: W + scale B A of `base`, with the norms
/// of its rows replaced by the magnitudes where there are some. `adapter_weights` gives what the
/// adapter trains, under our names. A, B and norms of a module are held while it is read. Threads:
/// as the sources.
WeightSource merged_weights(const Adapter& adapter,
                            WeightSource base,
                            WeightSource adapter_weights);

}  // namespace tessera::models

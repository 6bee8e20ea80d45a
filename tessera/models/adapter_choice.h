// SPDX-License-Identifier: Apache-2.0
// A model that holds several adapters of one base, for inference: each sample chooses one.
#pragma once

#include <string>
#include <vector>

#include "tessera/models/adapter.h"
#include "tessera/models/family.h"

namespace tessera::models {

struct NamedAdapter {
  std::string name;  ///< differs from the names of the others
  Adapter adapter;
  WeightSource weights;  ///< of Adapter::parameters
};

/// The model with the adapters, of which a sample uses the one that the batch's tensor
/// nn::kAdapterNumber names. Their parameters are called as in Adapter::parameters, with "NAME/" in
/// front. Nothing of it can be trained. Throws Error{Unsupported} for an adapter that changes
/// parameters of the model as a whole, such as biases or modules_to_save.
nn::Model with_adapters(const nn::Model& model, const std::vector<NamedAdapter>& adapters);

/// The weights of that model; other parameters are those of `base`. Thread safety is that of the
/// sources.
WeightSource weights_with_adapters(const std::vector<NamedAdapter>& adapters, WeightSource base);

}  // namespace tessera::models

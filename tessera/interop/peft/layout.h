// SPDX-License-Identifier: Apache-2.0
// Which tensors of PEFT's files form each parameter of an adapter.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/adapter.h"
#include "tessera/models/weight_map.h"

namespace tessera::interop {

inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// A tensor of a folder that corresponds to all or a part of a parameter.
struct PeftTensor {
  std::string name;  ///< plain_peft_name()
  Shape shape;
  std::string stored;  ///< the name that PEFT writes
  /// Copies it into the parameter.
  std::function<void(const std::vector<float>& theirs, float* ours)> into;
  /// Copies it out of the parameter.
  std::function<void(const float* ours, std::vector<float>& theirs)> out_of;
};

/// The tensors that form each parameter of the adapter.
using PeftLayout = std::map<std::string, std::vector<PeftTensor>>;
PeftLayout layout_of(const models::Adapter& adapter, const models::WeightMap& map);

}  // namespace tessera::interop

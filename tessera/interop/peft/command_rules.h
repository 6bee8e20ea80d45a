// SPDX-License-Identifier: Apache-2.0
// Adapters as options of TRL, axolotl and LLaMA-Factory describe them, by way of PEFT.
#pragma once

#include <string>
#include <vector>

#include "tessera/interop/command_meaning.h"

namespace tessera::interop::peft {

struct AdapterRules {
  const ForeignFlags::Setting* from = nullptr;  ///< the option that asks for an adapter
  /// If no layers are named: true, those that PEFT adapts in this family; false, all linear
  /// layers.
  bool default_targets = false;
};

/// Sets the section `adapter` from @lora_r, @lora_alpha, @lora_dropout, @lora_targets,
/// @lora_parameters, @lora_save, @rslora, @dora, @nf4, @int8 and @nested. Refuses quantization in
/// four and eight bits at once.
void set_adapter(Meaning& meaning, const AdapterRules& rules);

/// The layers that PEFT adapts in a model of this model_type if none are named; empty: unknown.
std::vector<std::string> default_targets(const std::string& model_type);

/// The model_type in config.json of a folder; empty: unknown.
std::string model_type_of(const std::string& folder);

}  // namespace tessera::interop::peft

// SPDX-License-Identifier: Apache-2.0
// The order in which torch enumerates a module's parameters; torch numbers an optimizer's state by
// it instead of using names.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/registry.h"

namespace tessera::models {

/// The modules of a Hugging Face model that have parameters, in the model's order. "*" stands for a
/// layer's number; modules with the same text before it alternate, layer by layer. Each module has
/// a ".weight" and then optionally a ".bias".
struct ModuleOrder {
  std::string base;  ///< prefix that files of the bare model omit: "transformer."
  std::vector<std::string> modules;

  /// Compared lexicographically.
  using Place = std::array<std::int64_t, 4>;
  /// The parameter's place in the order; nothing for an unknown name.
  [[nodiscard]] std::optional<Place> place(std::string_view name) const;
};

/// Filled by the model families.
Registry<ModuleOrder>& module_orders();
#define TESSERA_MODULE_ORDER(family, ...)                   \
  static const bool TESSERA_UNIQUE(tessera_module_order_) = \
      ::tessera::models::module_orders().add(family, __VA_ARGS__)

}  // namespace tessera::models

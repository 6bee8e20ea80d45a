// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/module_order.h"

#include <charconv>

namespace tessera::models {
namespace {

using Place = ModuleOrder::Place;

/// 0 for ".weight", 1 for ".bias"; nothing for other text.
std::optional<std::int64_t> part_of(std::string_view text) {
  if (text == ".weight") return 0;
  return text == ".bias" ? std::optional<std::int64_t>(1) : std::nullopt;
}

}  // namespace

std::optional<Place> ModuleOrder::place(std::string_view name) const {
  const auto without_base = [&](std::string_view full) {
    return full.starts_with(base) ? full.substr(base.size()) : full;
  };
  const std::string_view plain = without_base(name);
  std::string_view root;   // text before the number, for the current module
  std::int64_t first = 0;  // index of the first module with that root
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const std::string_view module = without_base(modules[i]);
    const auto place = static_cast<std::int64_t>(i);
    const std::size_t star = module.find('*');
    if (star == std::string_view::npos) {
      const auto part =
          plain.starts_with(module) ? part_of(plain.substr(module.size())) : std::nullopt;
      if (part) return Place{place, 0, 0, *part};
      continue;
    }
    if (root != module.substr(0, star)) first = place;
    root = module.substr(0, star);
    if (!plain.starts_with(root)) continue;
    std::int64_t layer = -1;
    const char* const end = plain.data() + plain.size();
    const auto [rest, failed] = std::from_chars(plain.data() + root.size(), end, layer);
    if (failed != std::errc() || layer < 0) continue;
    const std::string_view behind(rest, static_cast<std::size_t>(end - rest));
    const std::string_view inner = module.substr(star + 1);
    const auto part =
        behind.starts_with(inner) ? part_of(behind.substr(inner.size())) : std::nullopt;
    if (part) return Place{first, layer, place, *part};
  }
  return std::nullopt;
}

Registry<ModuleOrder>& module_orders() {
  static Registry<ModuleOrder> orders("family of models");
  return orders;
}

}  // namespace tessera::models

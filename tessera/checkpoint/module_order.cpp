// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/module_order.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/foreign_write.h"
#include "tessera/checkpoint/json_cursor.h"

namespace tessera::checkpoint {
namespace {

using Place = ModuleOrder::Place;

/// One way to know the order.
struct Order {
  std::function<std::optional<Place>(const std::string& name)> place;
  std::function<bool(const std::string& name)> is_buffer;
};

/// As the module itself was listed; what it does not list and nobody trains is a buffer.
Order listed_order(const Foreign& training) {
  std::map<std::string, std::int64_t> places;
  for (const std::string& name : training.parameters)
    places.emplace(name, places.size());
  std::set<std::string> trained;
  for (const auto& [state, tensors] : training.state) {
    for (const StreamedTensor& tensor : tensors)
      trained.insert(tensor.name);
  }
  return {[places](const std::string& name) {
            const auto found = places.find(name);
            return found == places.end() ? std::nullopt : std::optional(Place{found->second});
          },
          [any = !places.empty(), trained](const std::string& name) {
            return any && trained.count(name) == 0;
          }};
}

/// As the names of a family place them.
Order named_order(const ModuleOrder& family) {
  return {[&family](const std::string& name) { return family.place(name); }, is_stored_buffer};
}

/// 0 for ".weight", 1 for ".bias"; nothing for other text.
std::optional<std::int64_t> part_of(std::string_view text) {
  if (text == ".weight") return 0;
  return text == ".bias" ? std::optional<std::int64_t>(1) : std::nullopt;
}

/// That of the first of its names.
std::optional<Place> place_of(const StreamedTensor& tensor, const Order& order) {
  std::optional<Place> out = order.place(tensor.name);
  for (const std::string& alias : tensor.aliases) {
    const auto other = order.place(alias);
    if (other && (!out || *other < *out)) out = other;
  }
  return out;
}

/// Sorts the weights, buffers last; or the name of one that has no place.
std::optional<std::string> sort_by(const Order& order, Foreign& training) {
  std::vector<std::pair<std::optional<Place>, std::size_t>> places;
  for (const StreamedTensor& tensor : training.weights) {
    const auto place = place_of(tensor, order);
    if (!place && !order.is_buffer(tensor.name)) return tensor.name;
    places.emplace_back(place, places.size());
  }
  std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) {
    return a.first && (!b.first || *a.first < *b.first);
  });
  std::vector<StreamedTensor> sorted;
  std::vector<std::string> parameters;
  for (const auto& [place, index] : places) {
    if (place) parameters.push_back(training.weights[index].name);
    sorted.push_back(std::move(training.weights[index]));
  }
  training.weights = std::move(sorted);
  training.parameters = std::move(parameters);
  return std::nullopt;
}

}  // namespace

std::optional<Place> ModuleOrder::place(std::string_view name) const {
  const auto without_base = [&](std::string_view full) {
    return full.starts_with(base) ? full.substr(base.size()) : full;
  };
  const std::string_view plain = without_base(name);
  std::string_view root;   // before the number, of the module at hand
  std::int64_t first = 0;  // of the modules with that root
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

void order_by_module(Foreign& training) {
  auto unknown = sort_by(listed_order(training), training);
  for (const std::string& family : module_orders().names()) {
    if (unknown) unknown = sort_by(named_order(module_orders().get(family)), training);
  }
  TESSERA_REQUIRE(!unknown,
                  Unsupported,
                  fmt::format("{}: the place of {} among its module's parameters is not known, and "
                              "torch numbers an optimizer's state by it",
                              training.path.string(),
                              JsonCursor::shown(*unknown)),
                  "write --to tessera or --to deepspeed-universal, which go by names; for the "
                  "weights alone name a file that is not model_N.pth");
}

}  // namespace tessera::checkpoint

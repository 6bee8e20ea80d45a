// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/module_order.h"

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
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/interop/foreign_write.h"

namespace tessera::interop {
namespace {

using models::ModuleOrder;
using Place = ModuleOrder::Place;

/// A source of the order.
struct Order {
  std::function<std::optional<Place>(const std::string& name)> place;
  std::function<bool(const std::string& name)> is_buffer;
};

/// The order in which the module's parameters were listed; an unlisted tensor without training is a
/// buffer.
Order listed_order(const Foreign& training) {
  std::map<std::string, std::int64_t> places;
  for (const std::string& name : training.parameters)
    places.emplace(name, places.size());
  std::set<std::string> trained;
  for (const auto& [state, tensors] : training.state) {
    for (const checkpoint::StreamedTensor& tensor : tensors)
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

/// The order of a family's names.
Order named_order(const ModuleOrder& family) {
  return {[&family](const std::string& name) { return family.place(name); }, is_stored_buffer};
}

/// The place of the first of its names.
std::optional<Place> place_of(const checkpoint::StreamedTensor& tensor, const Order& order) {
  std::optional<Place> out = order.place(tensor.name);
  for (const std::string& alias : tensor.aliases) {
    const auto other = order.place(alias);
    if (other && (!out || *other < *out)) out = other;
  }
  return out;
}

/// Sorts the weights, buffers last; returns the name of a weight without a place, if any.
std::optional<std::string> sort_by(const Order& order, Foreign& training) {
  std::vector<std::pair<std::optional<Place>, std::size_t>> places;
  for (const checkpoint::StreamedTensor& tensor : training.weights) {
    const auto place = place_of(tensor, order);
    if (!place && !order.is_buffer(tensor.name)) return tensor.name;
    places.emplace_back(place, places.size());
  }
  std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) {
    return a.first && (!b.first || *a.first < *b.first);
  });
  std::vector<checkpoint::StreamedTensor> sorted;
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

void order_by_module(Foreign& training) {
  auto unknown = sort_by(listed_order(training), training);
  for (const std::string& family : models::module_orders().names()) {
    if (unknown) unknown = sort_by(named_order(models::module_orders().get(family)), training);
  }
  TESSERA_REQUIRE(!unknown,
                  Unsupported,
                  fmt::format("{}: the place of {} among its module's parameters is not known, and "
                              "torch numbers an optimizer's state by it",
                              training.path.string(),
                              checkpoint::JsonCursor::shown(*unknown)),
                  "write --to tessera or --to deepspeed-universal, which go by names; for the "
                  "weights alone name a file that is not model_N.pth");
}

}  // namespace tessera::interop

// SPDX-License-Identifier: Apache-2.0
// The order in which torch counts a module's parameters: by it, not by names, an optimizer's state
// is numbered.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/interop/formats/foreign_write.h"

namespace tessera::interop {
namespace {

/// Compared from the first number on.
using Place = std::array<std::int64_t, 4>;

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

/// Of Hugging Face's GPT2LMHeadModel.
std::optional<Place> place_in_gpt2(const std::string& name) {
  static const std::regex outer("(?:transformer\\.)?(wte|wpe|ln_f|lm_head)\\.(weight|bias)");
  static const std::regex inner(
      "(?:transformer\\.)?h\\.(\\d{1,9})\\."
      "(ln_1|attn\\.c_attn|attn\\.c_proj|ln_2|mlp\\.c_fc|mlp\\.c_proj)\\.(weight|bias)");
  static const std::map<std::string, std::int64_t> parts = {{"wte", 0},
                                                            {"wpe", 1},
                                                            {"ln_f", 3},  // 2: the layers
                                                            {"lm_head", 4},
                                                            {"ln_1", 0},
                                                            {"attn.c_attn", 1},
                                                            {"attn.c_proj", 2},
                                                            {"ln_2", 3},
                                                            {"mlp.c_fc", 4},
                                                            {"mlp.c_proj", 5}};
  const auto bias = [](const std::string& word) { return std::int64_t{word == "bias"}; };
  std::smatch match;
  if (std::regex_match(name, match, outer))
    return Place{parts.at(match[1].str()), 0, 0, bias(match[2].str())};
  if (std::regex_match(name, match, inner))
    return Place{2, std::stoll(match[1].str()), parts.at(match[2].str()), bias(match[3].str())};
  return std::nullopt;
}

Order gpt2_order() {
  return {place_in_gpt2, is_gpt2_buffer};
}

/// That of the first of its names.
std::optional<Place> place_of(const checkpoint::StreamedTensor& tensor, const Order& order) {
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
  if (!sort_by(listed_order(training), training)) return;
  const auto unknown = sort_by(gpt2_order(), training);
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

// SPDX-License-Identifier: Apache-2.0
// Fields whose values are the names of an enumeration. The table of names is next to the options
// that have the field, and describe() passes it on; code other than the reader sees only
// enumerators.
//
//   enum class Shape : std::uint8_t { Linear, Cosine };
//   constexpr auto kShapes = std::to_array<config::Named<Shape>>({
//       {Shape::Linear, "linear"}, {Shape::Cosine, "cosine"}});
//   ...
//   f.choice("shape", shape, kShapes, {.text = "Shape of the decay."});
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::config {

/// An enumerator and its name in a configuration.
template <class E>
struct Named {
  E value;
  std::string_view name;
};
/// The names of an enumeration, or of those of its values that a field takes.
template <class E, std::size_t N>
using NameTable = std::array<Named<E>, N>;

/// Returns the name of `value`, which the table has.
template <class E, std::size_t N>
std::string name_of(const NameTable<E, N>& names, E value) {
  const auto found = std::find_if(
      names.begin(), names.end(), [&](const Named<E>& entry) { return entry.value == value; });
  TESSERA_ASSERT(found != names.end());
  return std::string(found->name);
}

/// Returns the enumerator of this name, which the table has.
template <class E, std::size_t N>
E value_of(const NameTable<E, N>& names, std::string_view name) {
  const auto found = std::find_if(
      names.begin(), names.end(), [&](const Named<E>& entry) { return entry.name == name; });
  TESSERA_ASSERT(found != names.end());
  return found->value;
}

/// A field of an enumeration as a visitor of the options sees it: as a word.
struct ChoiceSlot {
  std::vector<std::string> names;
  bool optional = false;                             ///< the field may have no value
  std::function<std::optional<std::string>()> read;  ///< the current word; nothing without a value
  std::function<void(const std::string&)> set;       ///< takes one of `names`
};

template <class E, std::size_t N>
ChoiceSlot choice_slot(E& member, const NameTable<E, N>& names) {
  ChoiceSlot out;
  for (const Named<E>& entry : names)
    out.names.emplace_back(entry.name);
  out.read = [&member, &names] { return std::optional(name_of(names, member)); };
  out.set = [&member, &names](const std::string& word) { member = value_of(names, word); };
  return out;
}
template <class E, std::size_t N>
ChoiceSlot choice_slot(std::optional<E>& member, const NameTable<E, N>& names) {
  ChoiceSlot out;
  for (const Named<E>& entry : names)
    out.names.emplace_back(entry.name);
  out.optional = true;
  out.read = [&member, &names] {
    return member ? std::optional(name_of(names, *member)) : std::nullopt;
  };
  out.set = [&member, &names](const std::string& word) { member = value_of(names, word); };
  return out;
}

}  // namespace tessera::config

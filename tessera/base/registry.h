// SPDX-License-Identifier: Apache-2.0
// Maps names to registered values. Registries are filled by static objects and do not change once
// main starts.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

/// A name that no other use in a translation unit has: `prefix` and a number. For macros that
/// register components, since several files may be compiled as one.
#define TESSERA_UNIQUE(prefix) TESSERA_UNIQUE_JOINED(prefix, __COUNTER__)
#define TESSERA_UNIQUE_JOINED(prefix, number) TESSERA_UNIQUE_PASTED(prefix, number)
#define TESSERA_UNIQUE_PASTED(prefix, number) prefix##number

namespace tessera {

/// A case-insensitive map from names to values of type T.
template <class T>
class Registry {
 public:
  explicit Registry(std::string what) : what_(std::move(what)) {}

  bool add(const std::string& name, T value) {
    const bool fresh = entries_.emplace(text::lower(name), Entry{name, std::move(value)}).second;
    TESSERA_ASSERT(fresh);
    return fresh;
  }
  [[nodiscard]] bool has(std::string_view name) const {
    return entries_.count(text::lower(name)) > 0;
  }
  /// Throws Error{Config} that suggests the nearest name.
  [[nodiscard]] const T& get(std::string_view name) const {
    const auto it = entries_.find(text::lower(name));
    if (it == entries_.end()) {
      throw Error(Error::Kind::Config,
                  "unknown " + what_ + " \"" + std::string(name) + "\"",
                  text::suggestion(name, names()));
    }
    return it->second.value;
  }
  /// Returns the names as registered, sorted without regard to case.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [key, entry] : entries_)
      out.push_back(entry.name);
    return out;
  }

 private:
  struct Entry {
    std::string name;
    T value;
  };
  std::string what_;
  std::map<std::string, Entry> entries_;
};

}  // namespace tessera

// SPDX-License-Identifier: Apache-2.0
// Structs in Thrift's compact protocol, which are not trusted. Source: "Thrift compact protocol
// encoding".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::data {

/// A value and its members. Numbers and booleans are in `number`; doubles are left out.
struct Thrift {
  std::int64_t number = 0;
  std::string_view binary;
  std::vector<Thrift> items;                   ///< of a list or set
  std::vector<std::pair<int, Thrift>> fields;  ///< of a struct, by their ids

  /// Returns nullptr if there is none.
  [[nodiscard]] const Thrift* find(int id) const;
  [[nodiscard]] std::int64_t number_at(int id, std::int64_t absent) const;
  [[nodiscard]] std::string_view binary_at(int id) const;
  [[nodiscard]] const std::vector<Thrift>& items_at(int id) const;
};

/// Reads the struct at the beginning of `bytes` and removes it from them. Throws Error{Data} naming
/// `place` for damaged data, and for more than 32 levels. Memory: proportional to the bytes.
Thrift read_thrift(std::string_view& bytes, const std::string& place);

}  // namespace tessera::data

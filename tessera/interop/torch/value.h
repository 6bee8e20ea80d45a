// SPDX-License-Identifier: Apache-2.0
// Writes torch.save files that contain more than a dict of tensors, restricted to what
// torch.load(weights_only=True) accepts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/export.h"

namespace tessera::interop {

/// A Python value in such a file.
struct TorchValue {
  enum class Kind : std::uint8_t {
    None,
    Bool,
    Int,
    Float,
    Text,
    List,
    Dict,
    OrderedDict,
    Size,
    Tensor
  };
  using Item = std::pair<std::string, TorchValue>;

  static TorchValue integer(std::int64_t value);
  static TorchValue text(std::string value);
  static TorchValue list(std::vector<TorchValue> items);
  /// Keys are strings; with `numbered`, those that consist of decimal digits become numbers.
  static TorchValue dict(std::vector<Item> items, bool numbered = false);
  static TorchValue ordered(std::vector<Item> items);
  static TorchValue size(const std::vector<std::int64_t>& shape);
  static TorchValue tensor(checkpoint::StreamedTensor tensor);
  static TorchValue of(const json::Value& value);  ///< objects become dicts

  Kind kind = Kind::None;
  bool numbered = false;
  std::int64_t number = 0;  ///< for Bool and Int
  double real = 0;
  std::string word;
  std::vector<std::string> keys;   ///< for dicts
  std::vector<TorchValue> values;  ///< for lists and dicts
  std::shared_ptr<const checkpoint::StreamedTensor> data;
};

/// Writes and syncs `path`. Errors and memory as write_torch_weights().
void write_torch_file(
    const std::filesystem::path& path,
    const TorchValue& value,
    const checkpoint::Written& written = [](std::uint64_t) {});

}  // namespace tessera::interop

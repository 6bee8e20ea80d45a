// SPDX-License-Identifier: Apache-2.0
// A file of a DeepSpeed checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/torch/file.h"

namespace tessera::interop::deepspeed {

inline constexpr const char* kCopyAgain =
    "the checkpoint is damaged or incomplete: copy all files of its folder again";

/// An opened file. Throws Error{Format} for one that is not torch's, or lacks what is asked for.
struct File {
  explicit File(const std::filesystem::path& where) : path(where) {
    TorchContents contents = read_torch_file(where);
    values = std::move(contents.values);
    tensors = Named(std::move(contents.tensors));
  }
  [[nodiscard]] const json::Value& need(std::string_view key) const {
    const json::Value* found = at_path(values, key);
    TESSERA_REQUIRE(
        found != nullptr, Format, fmt::format("{}: has no {}", path.string(), key), kCopyAgain);
    return *found;
  }
  [[nodiscard]] const Weight& tensor(const std::string& name) const {
    const Weight* found = tensors.find(name);
    TESSERA_REQUIRE(found != nullptr,
                    Format,
                    fmt::format("{}: has no tensor {}", path.string(), name),
                    kCopyAgain);
    return *found;
  }
  std::filesystem::path path;
  json::Value values;
  Named tensors = Named({});
};

}  // namespace tessera::interop::deepspeed

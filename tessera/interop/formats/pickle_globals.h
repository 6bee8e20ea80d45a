// SPDX-License-Identifier: Apache-2.0
// What the names in pickles of torch stand for. Whatever is none of these is refused by its name.
#pragma once

#include <string_view>

namespace tessera::interop {

/// A function that files of tensors call: a word for what its arguments describe.
bool is_function(std::string_view name);
/// A type of storages, or of elements.
bool is_element_type(std::string_view name);
/// torch's own classes of tensors.
bool is_tensor_class(std::string_view name);
/// A class or function whose objects stand beside tensors and are described: of torch, DeepSpeed,
/// Megatron, transformers, numpy and others that train, and Python's plain containers.
bool is_described(std::string_view name);
/// What torch calls to build tensors without a storage of plain elements: "a sparse tensor";
/// nullptr for anything else.
const char* tensor_kind(std::string_view name);

}  // namespace tessera::interop

// SPDX-License-Identifier: Apache-2.0
// The meaning of the names in torch's pickles. Any other name is refused with an error that names
// it.
#pragma once

#include <string_view>

namespace tessera::interop {

/// A function that files of tensors call; only its arguments are interpreted.
bool is_function(std::string_view name);
/// A type of storages, or of elements.
bool is_element_type(std::string_view name);
/// torch's own classes of tensors.
bool is_tensor_class(std::string_view name);
/// A class or function whose objects occur next to tensors and are converted to descriptions: of
/// torch, DeepSpeed, Megatron, transformers, numpy and other training programs, and Python's plain
/// containers.
bool is_described(std::string_view name);
/// Describes what torch's function of this name builds if it is a tensor without plain elements: "a
/// sparse tensor"; nullptr for any other name.
const char* tensor_kind(std::string_view name);

}  // namespace tessera::interop

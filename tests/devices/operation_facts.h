// SPDX-License-Identifier: Apache-2.0
// What a simulated device must know of an operation of libtorch.
#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace tessera::test {

/// Appends the tensors of an argument or a result.
void collect(const c10::IValue& value, std::vector<at::Tensor>& out);
/// True if the size or value of the result must be known to the host.
bool makes_the_host_wait(std::string_view name, const std::vector<at::Tensor>& reads);

}  // namespace tessera::test

// SPDX-License-Identifier: Apache-2.0
// The activations, for headers that include nothing of libtorch.
#pragma once

namespace tessera::ops {

enum class Activation { GeluTanh, Gelu, Relu, Silu, QuickGelu, SquaredRelu };

}  // namespace tessera::ops

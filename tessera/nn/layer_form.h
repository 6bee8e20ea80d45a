// SPDX-License-Identifier: Apache-2.0
// The interface for layers that compute something else than the plain product or look-up of a
// weight, such as an adapter or a weight in another representation. Each form is a class in its own
// file, attached to the weight's Param when its block is made; no block and no model family names
// one.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

/// Owned by the Param of a weight and shared by all calls, which must not change it.
class LayerForm : public ParamExtension {
 public:
  /// linear() and embedding() of functional.h for a weight in this form. Each throws
  /// Error{Unsupported} if the form does not support it.
  [[nodiscard]] virtual at::Tensor linear(const at::Tensor& x,
                                          const Param& weight,
                                          const Param* bias,
                                          StepContext& context) const = 0;
  [[nodiscard]] virtual at::Tensor embedding(const at::Tensor& ids_BT,
                                             const Param& table,
                                             StepContext& context) const = 0;
};

/// Returns the form of a weight; nullptr: the plain layer.
inline const LayerForm* form_of(const Param& param) {
  return static_cast<const LayerForm*>(param.extension());
}

/// linear() and embedding() of functional.h without regard to the form; other forms call them.
at::Tensor plain_linear(const at::Tensor& x,
                        const Param& weight,
                        const Param* bias,
                        StepContext& context);
at::Tensor plain_embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context);

}  // namespace tessera::nn

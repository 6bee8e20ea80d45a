// SPDX-License-Identifier: Apache-2.0
// What a layer computes with a weight where that is not the plain product or look-up: an adapter, a
// weight in another representation. Each form is a class in a file of its own, which is given to
// the weight's Param when its block is made; no block and no family names one.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

/// Held by the Params of a weight, and shared by all calls: a call changes nothing in it.
class LayerForm : public ParamExtension {
 public:
  /// linear() and embedding() of functional.h, of a weight in this form. Error{Unsupported} for the
  /// one that the form does not have.
  [[nodiscard]] virtual at::Tensor linear(const at::Tensor& x,
                                          const Param& weight,
                                          const Param* bias,
                                          StepContext& context) const = 0;
  [[nodiscard]] virtual at::Tensor embedding(const at::Tensor& ids_BT,
                                             const Param& table,
                                             StepContext& context) const = 0;
};

/// nullptr: the plain one.
inline const LayerForm* form_of(const Param& param) {
  return static_cast<const LayerForm*>(param.extension());
}

/// linear() and embedding() of functional.h, whatever the form: what other forms build on.
at::Tensor plain_linear(const at::Tensor& x,
                        const Param& weight,
                        const Param* bias,
                        StepContext& context);
at::Tensor plain_embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context);

}  // namespace tessera::nn

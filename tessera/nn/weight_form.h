// SPDX-License-Identifier: Apache-2.0
// The form in which the values of a weight are held: whole, or in parts by the ranks of a
// tensor-parallel mode. Each way is a class in its own file; layers ask weight_form() for the
// class of a weight and do not branch themselves. An adapter (layer_form.h) comes on top of it. A
// rank's own product and look-up (local_layers.h) also accept values in 8 bits. Legend: B batch,
// T tokens, C channels, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

/// A strategy without state; shared by all threads.
class WeightForm {
 public:
  virtual ~WeightForm() = default;
  /// plain_linear() of layer_form.h for a weight in this form.
  [[nodiscard]] virtual at::Tensor linear(const at::Tensor& x,
                                          const Param& weight,
                                          const Param* bias,
                                          StepContext& context) const = 0;
  /// The logits x weight^T + bias of the whole vocabulary in fp32, on every rank.
  [[nodiscard]] virtual at::Tensor logits(const at::Tensor& x_BTC,
                                          const Param& weight_VC,
                                          const Param* bias_V,
                                          StepContext& context) const = 0;
  /// plain_embedding() of layer_form.h for a table in this form.
  [[nodiscard]] virtual at::Tensor embedding(const at::Tensor& ids_BT,
                                             const Param& table,
                                             StepContext& context) const = 0;
};

/// The form of a weight in the layout of `context`. It is chosen per call, because a parameter is
/// placed on the ranks after its block has declared it.
const WeightForm& weight_form(const Param& weight, const StepContext& context);

/// Every rank holds all of the weight.
const WeightForm& whole_form();
/// Mode 1d: ranks hold parts of the output features (of the rows of a table), or of the input
/// features.
const WeightForm& split_outputs_form();
const WeightForm& split_inputs_form();
/// Modes 2d, 2.5d and 3d: ranks of a grid hold parts of the weight.
const WeightForm& grid_form();
/// A weight that all ranks of a grid hold whole. A product needs no communication, because its
/// input comes from gather_flow(); a look-up is this rank's share of the samples.
const WeightForm& whole_on_grid_form();

}  // namespace tessera::nn

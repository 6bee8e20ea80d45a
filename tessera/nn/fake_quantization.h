// SPDX-License-Identifier: Apache-2.0
// Quantization-aware training: a layer multiplies rounded inputs by rounded weights, and gradients
// pass both roundings unchanged. Source: Jacob et al. 2018, "Quantization and training of neural
// networks for efficient integer-arithmetic-only inference"; formats as in torchao. Legend: N rows
// of the input, I in, O out features.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/layer_form.h"
#include "tessera/ops/fake_quantize.h"

namespace tessera::nn {

struct FakeQuantization {
  ops::FakeFormat weights = ops::FakeFormat::Int4Group;
  std::optional<ops::FakeFormat> activations;
  std::int64_t group_size = 32;
  std::int64_t after_steps = 0;  ///< updates before which nothing is rounded
};

/// The form of a weight that every rank holds whole. Look-ups are not rounded.
class FakeQuantizedForm final : public LayerForm {
 public:
  /// `part_of_rows`: the part of each row of the matrix [O, I], for a format that has a scale of a
  /// whole weight; empty: one part.
  FakeQuantizedForm(FakeQuantization how, std::vector<std::int64_t> part_of_rows)
      : how_(how), part_of_rows_(std::move(part_of_rows)) {}

  [[nodiscard]] at::Tensor linear(const at::Tensor& x,
                                  const Param& weight,
                                  const Param* bias,
                                  StepContext& context) const override;
  [[nodiscard]] at::Tensor embedding(const at::Tensor& ids_BT,
                                     const Param& table,
                                     StepContext& context) const override;

  [[nodiscard]] bool rounds(const StepContext& context) const {
    return context.step >= how_.after_steps;
  }
  [[nodiscard]] at::Tensor rounded_input(const at::Tensor& x_NI) const;
  [[nodiscard]] at::Tensor rounded_weight(const at::Tensor& weight_OI) const;

 private:
  FakeQuantization how_;
  std::vector<std::int64_t> part_of_rows_;
};

/// The form of a weight, if it rounds in this step; else nullptr.
const FakeQuantizedForm* fake_form_of(const Param& weight, const StepContext& context);

}  // namespace tessera::nn

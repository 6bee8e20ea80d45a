// SPDX-License-Identifier: Apache-2.0
// Heads over a vocabulary whose logits have a bias, as encoders that predict masked tokens have.
// Legend: B batch, T tokens, C channels, V vocabulary.
#pragma once

#include "tessera/nn/functional.h"

namespace tessera::nn {

/// vocab_loss() of functional.h with logits = x weight^T + bias. `bias_V`: a parameter whose axis
/// is Vocab, so that it is cut as the weight is; nullptr: none. Error{Unsupported} for a bias on a
/// grid of ranks.
VocabLoss vocab_loss(const at::Tensor& x_BTC,
                     const Param& weight_VC,
                     const Param* bias_V,
                     const at::Tensor& labels_BT,
                     double label_smoothing,
                     StepContext& context);
/// vocab_logits() of functional.h with the bias of the logits; errors as above. A linear layer that
/// no rank holds a part of may have a bias on every layout.
at::Tensor vocab_logits(const at::Tensor& x_BTC,
                        const Param& weight_VC,
                        const Param* bias_V,
                        StepContext& context);

}  // namespace tessera::nn

// SPDX-License-Identifier: Apache-2.0
// Heads over a vocabulary whose logits have a bias, as in encoders that predict masked tokens, or a
// soft cap, as in Gemma 2. Legend: B batch, T tokens, C channels, V vocabulary.
#pragma once

#include "tessera/nn/functional.h"

namespace tessera::nn {

/// vocab_loss() of functional.h with logits = x weight^T + bias. If `softcap` is not 0, the logits
/// become softcap * tanh(logits / softcap). `bias_V` is a parameter whose axis is Vocab, so that it
/// is split as the weight is; nullptr: none.
VocabLoss vocab_loss(const at::Tensor& x_BTC,
                     const Param& weight_VC,
                     const Param* bias_V,
                     const at::Tensor& labels_BT,
                     double label_smoothing,
                     StepContext& context,
                     double softcap = 0.0);
/// vocab_logits() of functional.h with the bias and the soft cap of the logits. A linear layer
/// whose weight is not split over ranks may have a bias in every layout.
at::Tensor vocab_logits(const at::Tensor& x_BTC,
                        const Param& weight_VC,
                        const Param* bias_V,
                        StepContext& context,
                        double softcap = 0.0);

}  // namespace tessera::nn

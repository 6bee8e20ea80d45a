// SPDX-License-Identifier: Apache-2.0
// The final norm and the head over the vocabulary of a model that continues text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/models/trunk.h"
#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/nn/token_log_probabilities.h"

// Legend: B batch, T tokens, C embed, V vocabulary.
namespace tessera::models {

class TextHead {
 public:
  explicit TextHead(TrunkOutput trunk) : trunk_(std::move(trunk)), norm_(trunk_.norm) {}
  void declare(nn::Params& params);
  /// True if the context requests the logits of a sequence that is being generated.
  [[nodiscard]] static bool generating(const nn::StepContext& context);
  /// The outcome in generation: the logits of the last token, or of all.
  [[nodiscard]] nn::Outcome generated(at::Tensor x_BTC, nn::StepContext& context) const;
  /// Converts the trunk's hidden states to the head's input.
  [[nodiscard]] at::Tensor states(const at::Tensor& x_BTC, nn::StepContext& context) const;
  [[nodiscard]] at::Tensor logits(const at::Tensor& states_BTC, nn::StepContext& context) const;
  /// See nn::token_log_probabilities(); the soft cap is the head's. `labels_BT` and the results
  /// cover whole samples, also if ranks share their tokens.
  [[nodiscard]] nn::TokenLogProbabilities log_probabilities(const at::Tensor& states_BTC,
                                                            const at::Tensor& labels_BT,
                                                            nn::StepContext& context,
                                                            nn::Distribution how = {}) const;
  /// Objective::samples_at_once() for samples of `tokens` tokens.
  [[nodiscard]] std::int64_t samples_at_once(std::int64_t tokens) const;
  [[nodiscard]] const TrunkOutput& trunk() const { return trunk_; }
  [[nodiscard]] const Param& weight() const { return *weight_; }
  /// nullptr if the logits have no bias.
  [[nodiscard]] const Param* bias() const { return bias_; }

 private:
  TrunkOutput trunk_;
  Norm norm_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

/// Throws Error{Unsupported} unless the trunk is a decoder without an encoder; `objective` is the
/// objective's name in the message.
void require_decoder(const TrunkOutput& trunk, const char* objective);

}  // namespace tessera::models

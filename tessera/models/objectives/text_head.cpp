// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/objectives/text_head.h"

#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/vocab_head.h"
#include "tessera/ops/cross_entropy.h"

namespace tessera::models {

void TextHead::declare(nn::Params& params) {
  norm_.declare(params, trunk_.norm_name, trunk_.hidden_size, kGlobalName);
  weight_ = declare_vocabulary_head(params, trunk_);
  bias_ = declare_vocabulary_bias(params, trunk_);
}

bool TextHead::generating(const nn::StepContext& context) {
  return context.mode() == nn::Mode::Prefill || context.mode() == nn::Mode::Decode;
}

nn::Outcome TextHead::generated(at::Tensor x_BTC, nn::StepContext& context) const {
  if (!context.want_logits) x_BTC = x_BTC.narrow(1, x_BTC.size(1) - 1, 1);
  return {.outputs = {{"logits", logits(states(x_BTC, context), context)}}};
}

at::Tensor TextHead::states(const at::Tensor& x_BTC, nn::StepContext& context) const {
  at::Tensor y_BTC = norm_(x_BTC, context);
  if (trunk_.target) y_BTC = nn::dropout(y_BTC, context.dropout("output", trunk_.target->dropout));
  return trunk_.state_factor == 1.0 ? y_BTC : y_BTC * trunk_.state_factor;
}

at::Tensor TextHead::logits(const at::Tensor& states_BTC, nn::StepContext& context) const {
  return nn::vocab_logits(states_BTC, *weight_, bias_, context, trunk_.logit_softcap);
}

nn::TokenLogProbabilities TextHead::log_probabilities(const at::Tensor& states_BTC,
                                                      const at::Tensor& labels_BT,
                                                      nn::StepContext& context,
                                                      nn::Distribution how) const {
  how.softcap = trunk_.logit_softcap;
  const bool shares = context.shares_tokens();
  nn::TokenLogProbabilities out = nn::token_log_probabilities(
      states_BTC,
      *weight_,
      bias_,
      shares ? nn::own_tokens(labels_BT, *context.context_parallel) : labels_BT,
      context,
      how);
  if (!shares) return out;
  for (at::Tensor* const values :
       {&out.values_BT, &out.log_sums_of_squares_BT, &out.entropies_BT}) {
    if (values->defined()) *values = nn::values_of_samples(*values, context);
  }
  return out;
}

std::int64_t TextHead::samples_at_once(std::int64_t tokens) const {
  // The padded size, not this rank's share, because all ranks must take the same steps.
  return ops::samples_of_logits(tokens, weight_->info().room_numel() / trunk_.hidden_size);
}

void require_decoder(const TrunkOutput& trunk, const char* objective) {
  TESSERA_REQUIRE(
      trunk.causal,
      Unsupported,
      fmt::format("{} is a next-token objective, and the model's family is a bidirectional encoder",
                  objective),
      "choose another task, such as masked_lm or classify, or the family of a decoder "
      "in model.family");
  TESSERA_REQUIRE(
      !trunk.target,
      Unsupported,
      fmt::format("{} continues a text, and the model's family is an encoder-decoder", objective),
      "choose the task seq2seq, or the family of a decoder in model.family");
}

}  // namespace tessera::models

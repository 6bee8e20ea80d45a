// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/trunk.h"

#include <ATen/ATen.h>

#include "tessera/ops/cross_entropy.h"

namespace tessera::models {

using enum LogicalAxis;

Param* declare_table(nn::Params& params, const TrunkOutput& trunk) {
  const Shape sizes = {trunk.vocabulary.vocab_size, trunk.hidden_size};
  const Init init = trunk.init();
  const std::string& name = trunk.vocabulary.name;
  if (trunk.vocabulary.tied) return params.tied(name, sizes, {Vocab, Embed}, init);
  return params.add(name, sizes, {Vocab, Embed}, init, kGlobalName);
}

Param* declare_vocabulary_head(nn::Params& params, const TrunkOutput& trunk) {
  if (trunk.vocabulary.tied) return declare_table(params, trunk);
  return params.add("lm_head.weight",
                    {trunk.vocabulary.vocab_size, trunk.hidden_size},
                    {Vocab, Embed},
                    trunk.init(),
                    kGlobalName);
}

Param* declare_vocabulary_bias(nn::Params& params, const TrunkOutput& trunk) {
  const VocabularyTable& table = trunk.vocabulary;
  if (!table.head_bias) return nullptr;
  return params.add("lm_head.bias", {table.vocab_size}, {Vocab}, Init::zeros(), kGlobalName);
}

at::Tensor decoder_input(const nn::Batch& batch,
                         const TargetText& target,
                         const nn::StepContext& context) {
  if (batch.has("decoder_input_ids")) return batch.tensor("decoder_input_ids");
  const bool shared = context.shares_tokens();
  const at::Tensor labels_BT =
      shared ? nn::all_tokens(batch.tensor("labels"), *context.context_parallel)
             : batch.tensor("labels");
  const at::Tensor known_BT =
      labels_BT.masked_fill(labels_BT.eq(ops::kIgnoreLabel), target.pad_token);
  const at::Tensor start_B1 =
      at::full({labels_BT.size(0), 1}, target.start_token, labels_BT.options());
  const at::Tensor read_BT = at::cat({start_B1, known_BT.narrow(1, 0, labels_BT.size(1) - 1)}, 1);
  return shared ? nn::own_tokens(read_BT, *context.context_parallel) : read_BT;
}

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/trunk.h"

namespace tessera::models {

using enum LogicalAxis;

Param* declare_table(nn::Params& params, const TrunkOutput& trunk) {
  const Shape sizes = {trunk.vocabulary.vocab_size, trunk.hidden_size};
  const Init init = Init::normal(trunk.init_std);
  const std::string& name = trunk.vocabulary.name;
  if (trunk.vocabulary.tied) return params.tied(name, sizes, {Vocab, Embed}, init);
  return params.add(name, sizes, {Vocab, Embed}, init, kGlobalName);
}

Param* declare_vocabulary_head(nn::Params& params, const TrunkOutput& trunk) {
  if (trunk.vocabulary.tied) return declare_table(params, trunk);
  return params.add("lm_head.weight",
                    {trunk.vocabulary.vocab_size, trunk.hidden_size},
                    {Vocab, Embed},
                    Init::normal(trunk.init_std),
                    kGlobalName);
}

}  // namespace tessera::models

// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/megatron_names.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::models {

Registry<MegatronNames>& megatron_names() {
  static Registry<MegatronNames> names("family of Megatron-LM's models");
  return names;
}

const MegatronNames& megatron_names_of(const RotaryKind& kind, const std::string& what) {
  for (const std::string& family : megatron_names().names()) {
    const MegatronNames& names = megatron_names().get(family);
    if (names.kind == kind) return names;
  }
  throw Error(Error::Kind::Unsupported,
              fmt::format("{}: has rotary positions, {} of queries, keys and values and {} of "
                          "query and key heads{}, and no family of such models is built",
                          what,
                          kind.qkv_bias ? "biases" : "no biases",
                          kind.qk_norm ? "norms" : "no norms",
                          kind.experts ? ", experts" : ""),
              "convert it with a program that has one");
}

Registry<MegatronLearnedNames>& megatron_learned_names() {
  static Registry<MegatronLearnedNames> names("family of Megatron-LM's encoders");
  return names;
}

const MegatronLearnedNames& megatron_learned_names_of(bool decoder, const std::string& what) {
  for (const std::string& family : megatron_learned_names().names()) {
    const MegatronLearnedNames& names = megatron_learned_names().get(family);
    if (names.decoder.layers.empty() != decoder) return names;
  }
  throw Error(Error::Kind::Unsupported,
              fmt::format("{}: is {} of Megatron-LM, and no family of such models is built",
                          what,
                          decoder ? "an encoder with a decoder" : "an encoder"),
              "convert it with a program that has one");
}

}  // namespace tessera::models

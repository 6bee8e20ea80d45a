// SPDX-License-Identifier: Apache-2.0
// Decoders, which convert tokens back to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/text/tokenizers/part_reader.h"

namespace tessera::text::tokenizers {

/// Rewrites the list of tokens; the text is the concatenation of the resulting tokens. Const
/// methods can be called from any thread.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};
using DecoderPtr = std::shared_ptr<const Decoder>;

/// Creates the decoder of "type", as the tokenizers library defines it. Throws the errors of
/// read_normalizer().
DecoderPtr read_decoder(const Part& part, int depth = 0);

}  // namespace tessera::text::tokenizers

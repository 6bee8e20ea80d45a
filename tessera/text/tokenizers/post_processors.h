// SPDX-License-Identifier: Apache-2.0
// Post-processors, which add tokens around those of one text or of a pair of texts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/text/tokenizers/part_reader.h"

namespace tessera::text::tokenizers {

/// The tokens of a text. All lists have one entry per token.
struct Encoding {
  std::vector<std::int32_t> ids;
  std::vector<std::string> tokens;                             ///< in the vocabulary's notation
  std::vector<std::pair<std::int64_t, std::int64_t>> offsets;  ///< [begin, end) in code points
  /// Text of a pair to which the token belongs.
  std::vector<std::int32_t> type_ids;
  void append(const Encoding& other);
  void append(std::int32_t id, const std::string& token, std::int32_t type_id);
};

/// Const methods can be called from any thread.
class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  /// Rewrites the one or two encodings; adds special tokens if `special`.
  virtual void apply(std::vector<Encoding>& encodings, bool special) const = 0;
};
using PostProcessorPtr = std::shared_ptr<const PostProcessor>;

/// Creates the post-processor of "type", as the tokenizers library defines it. Throws the errors of
/// read_normalizer().
PostProcessorPtr read_post_processor(const Part& part, int depth = 0);

}  // namespace tessera::text::tokenizers

// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/special_token.h"

#include <vector>

namespace tessera::tasks {

std::optional<std::int32_t> special_token(const text::Tokenizer& tokenizer,
                                          const std::string& token) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(token, ids, /*special=*/true);
  if (ids.size() != 1) return std::nullopt;
  return ids.front();
}

}  // namespace tessera::tasks

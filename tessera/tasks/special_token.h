// SPDX-License-Identifier: Apache-2.0
// Looks up tokens that tasks need by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

/// The id of the tokenizer's token with this text; nothing if the text is not a single token.
std::optional<std::int32_t> special_token(const text::Tokenizer& tokenizer,
                                          const std::string& token);

}  // namespace tessera::tasks

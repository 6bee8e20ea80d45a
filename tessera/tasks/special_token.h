// SPDX-License-Identifier: Apache-2.0
// Tokens that tasks need by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/data/tokenizer.h"

namespace tessera::tasks {

/// The id of a token that the tokenizer has under this text; nothing where the text is no single
/// token.
std::optional<std::int32_t> special_token(const data::Tokenizer& tokenizer,
                                          const std::string& token);

}  // namespace tessera::tasks

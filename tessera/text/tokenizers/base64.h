// SPDX-License-Identifier: Apache-2.0
// Base64 decoding for tokenizer files.
#pragma once

#include <string>
#include <string_view>

namespace tessera::text::tokenizers {

/// Decodes RFC 4648 text with padding. Throws Error{Format} with `where` for other text.
std::string from_base64(std::string_view text, const std::string& where);

}  // namespace tessera::text::tokenizers

// SPDX-License-Identifier: Apache-2.0
// Oniguruma's dialect of regular expressions, in which tokenizer.json writes them, as PCRE2's.
#pragma once

#include <string>

namespace tessera::text::tokenizers {

/// Translates what differs: the members of \s, \w and \h, \u with four digits, and character
/// classes that contain others ([^(\s|[.,!])]) or their intersection ([\w&&[^_]]). Throws
/// Error{Unsupported} for classes that are nested more than 32 deep or not closed.
std::string to_pcre2(const std::string& expression);

}  // namespace tessera::text::tokenizers

// SPDX-License-Identifier: Apache-2.0
// Writing systems of characters.
#pragma once

namespace tessera::text::tokenizers {

/// The script of a character as a number that means nothing but equality; 0 if it goes with any
/// script: the space, and characters that Unicode 9.0 lacks. Chinese and Japanese are one script.
int script_of(char32_t c);

}  // namespace tessera::text::tokenizers

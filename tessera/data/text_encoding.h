// SPDX-License-Identifier: Apache-2.0
// The bytes of a file as UTF-8 text.
#pragma once

#include <string>
#include <string_view>

namespace tessera::data {

/// The contents of a file of text: decompressed, and converted to UTF-8 if they begin with the byte
/// order mark of UTF-16. Other contents are returned unchanged; what is made is in `kept`. Throws
/// the errors of decompressed(), and Error{Data} with the position of bytes that are not UTF-16,
/// and for UTF-32.
std::string_view plain_text(std::string_view bytes, const std::string& name, std::string& kept);

}  // namespace tessera::data

// SPDX-License-Identifier: Apache-2.0
// Base64 as tokenizers' files hold it.
#pragma once

#include <string>
#include <string_view>

namespace tessera::data::tokenizers {

/// The bytes of RFC 4648 text with padding. Error{Format} that names `where` for other text.
std::string from_base64(std::string_view text, const std::string& where);

}  // namespace tessera::data::tokenizers

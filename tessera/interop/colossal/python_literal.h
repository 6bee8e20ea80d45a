// SPDX-License-Identifier: Apache-2.0
// Parser for configurations written as Python assignments of literals, as Colossal-AI's are.
#pragma once

#include <string>
#include <string_view>

#include "tessera/config/json.h"

namespace tessera::interop {

/// Reads a Python file without executing anything: assignments, of which later ones may refer to
/// earlier ones, or a single expression. Supported are dict(...), {...}, lists, tuples, strings,
/// numbers with + - * / // % **, True, False and None; a dotted name such as AMP_TYPE.NAIVE becomes
/// a string of that text, and so does a name that is imported: Adam after "from torch.optim import
/// Adam". The result has one member per assigned name; the members of a dictionary called CONFIG
/// are added to them. Throws Error{Config} with source:line:column for anything else.
json::Value parse_python(std::string_view text, const std::string& source);

}  // namespace tessera::interop

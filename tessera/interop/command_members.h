// SPDX-License-Identifier: Apache-2.0
// Objects inside of a program's file of settings, whose members have a table of their own.
#pragma once

#include <string_view>

#include "tessera/config/json.h"
#include "tessera/interop/command_meaning.h"

namespace tessera::interop {

/// Reports every member of `object` that the table ("axolotl/dataset") lacks or refuses, with its
/// line in the file. A refused member is accepted if its value is null, false, empty or the
/// program's default.
void check_members(Meaning& meaning, const json::Value& object, std::string_view table);

}  // namespace tessera::interop

// SPDX-License-Identifier: Apache-2.0
// The data sets of axolotl's file: where they are, their formats, and the names of their fields.
#pragma once

#include "tessera/interop/command_meaning.h"

namespace tessera::interop::axolotl {

/// Sets `key` ("data.train" or "data.validation") from a list of data sets, and of data.train also
/// the format and the names of fields. `supervised`: records are conversations. Reports what is not
/// there, and what would be read in another way.
void set_data(Meaning& meaning,
              const ForeignFlags::Setting& from,
              const char* key,
              bool supervised);

}  // namespace tessera::interop::axolotl

// SPDX-License-Identifier: Apache-2.0
// A model of a plan, as far as rules about the names of its tensors need it.
#pragma once

#include <string>

#include "tessera/models/family.h"

namespace tessera::planner {

struct NamedModel {
  models::Resolved& resolved;
  const std::string& family;
  bool adapted = false;  ///< it has an adapter
};

}  // namespace tessera::planner

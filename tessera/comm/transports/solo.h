// SPDX-License-Identifier: Apache-2.0
// The transport of a world of one rank.
#pragma once

#include <memory>

#include "tessera/base/control_page.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

/// Collectives are copies or do nothing, Write::Accumulate adds, regions are private memory.
/// Messages have no peer and throw Error{Shape}.
std::unique_ptr<Transport> make_solo_transport(ControlPage* control);

}  // namespace tessera::comm

// SPDX-License-Identifier: Apache-2.0
// Handling of signals that ask a job to stop, as a rank receives them.
#pragma once

#include <csignal>

#include "tessera/base/control_page.h"

namespace tessera::launch {

enum class SecondSignal {
  Ignore,  ///< a supervisor decides
  End,     ///< the process ends at once with unsaved_exit_code()
};

/// From now on each of `signals` sets stop_requested on `control` (the first one wins). The page
/// must stay mapped. Call it once per process.
void stop_on_signals(ControlPage& control, const sigset_t& signals, SecondSignal second);

}  // namespace tessera::launch

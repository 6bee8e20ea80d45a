// SPDX-License-Identifier: Apache-2.0
// Tries devices before a job starts, in a process of its own.
#pragma once

#include <vector>

#include "tessera/memory/device.h"

namespace tessera::memory {

/// Enters each device and calls its try_out() in a child process, so that the calling process,
/// which forks the ranks, stays free of the device's libraries. Throws the Error of the first
/// device that fails, or Error{Environment} if the child is ended by a signal or does not answer
/// within `limit_s` seconds. Devices without try_out() are not tried. Cost: the time that the
/// libraries need to load, about a second. Call it while the process has no other threads.
void try_devices(const std::vector<Device>& devices, double limit_s = 60.0);

}  // namespace tessera::memory

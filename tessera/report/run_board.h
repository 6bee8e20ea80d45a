// SPDX-License-Identifier: Apache-2.0
// Runs as text, for a terminal.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tessera/report/run_view.h"

namespace tessera::report {

/// Returns one character per value, from the lowest to the highest of eight; empty without values.
std::string sparkline(std::span<const double> values);

/// Returns lines of at most `width` characters: for each run its state, progress, loss and curve,
/// rate, speed, memory, expected end, and the last warning.
std::vector<std::string> run_board(std::span<const RunView> runs, std::size_t width);

}  // namespace tessera::report

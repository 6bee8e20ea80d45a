// SPDX-License-Identifier: Apache-2.0
// Runs as text: what a terminal shows of them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tessera/report/run_view.h"

namespace tessera::report {

/// One character of a curve for each value, from the lowest to the highest of eight; empty without
/// values.
std::string sparkline(std::span<const double> values);

/// Lines of at most `width` characters: for each run its state, how far it is, loss and curve,
/// rate, speed, memory, expected end, and the last warning.
std::vector<std::string> run_board(std::span<const RunView> runs, std::size_t width);

}  // namespace tessera::report

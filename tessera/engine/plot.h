// SPDX-License-Identifier: Apache-2.0
// The loss curve as a picture.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/engine/metrics.h"

namespace tessera::engine {

/// An SVG of training loss (raw and smoothed) and held-out loss over steps, with axes, grid and
/// legend. Text only.
std::string loss_plot(const LossHistory& history);
/// Writes it atomically. Nothing for an empty history.
void write_loss_plot(const std::filesystem::path& path, const LossHistory& history);

}  // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
// The pictures of a classifier's evaluation in a run's folder.
#pragma once

#include <filesystem>

#include "tessera/models/family.h"
#include "tessera/tasks/metrics.h"

namespace tessera::engine {

/// Writes for a classifier `confusion.svg`, and `roc.svg` where a curve exists: of the second of
/// two classes, of each of several classes or labels. Each of several label heads has pictures of
/// its own, `confusion_HEAD.svg` and `roc_HEAD.svg`. Other predictions, and those of more than
/// report::kMostPlottedClasses classes, have no picture. Throws Error{Io}.
void write_class_pictures(const std::filesystem::path& folder,
                          const tasks::Predictions& predictions,
                          const models::ObjectiveChoice& objective);

}  // namespace tessera::engine

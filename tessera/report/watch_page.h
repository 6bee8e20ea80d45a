// SPDX-License-Identifier: Apache-2.0
// The page that shows runs in a browser: one self-contained file.
#pragma once

#include <string>

#include "tessera/config/json.h"

namespace tessera::report {

/// `data`: an array of RunView::details() for a page that needs no server; null: the page asks its
/// server at /api/runs every two seconds. Contents of runs are shown as text and never interpreted.
std::string watch_page(const json::Value& data);

}  // namespace tessera::report

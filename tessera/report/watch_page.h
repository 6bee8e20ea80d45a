// SPDX-License-Identifier: Apache-2.0
// The page that shows runs in a browser: one file without anything from elsewhere.
#pragma once

#include <string>

#include "tessera/config/json.h"

namespace tessera::report {

/// `data`: an array of RunView::details(), for a page that stands alone; null: the page asks its
/// server at /api/runs every two seconds. What runs contain is shown as text and never interpreted.
std::string watch_page(const json::Value& data);

}  // namespace tessera::report

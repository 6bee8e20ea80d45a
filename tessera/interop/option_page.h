// SPDX-License-Identifier: Apache-2.0
// The pages of docs/coming_from/ that list the options of a program.
#pragma once

#include <string>
#include <vector>

namespace tessera::interop {

/// The programs that have a page, sorted: "trl" for docs/coming_from/trl.md.
std::vector<std::string> option_pages();

/// Returns the page of a program as Markdown: how its commands are recognised, and for each of its
/// parsers the options that set keys, those without an effect and those that are refused. Throws
/// Error{Config} for a program without a page.
std::string option_page(const std::string& program);

}  // namespace tessera::interop

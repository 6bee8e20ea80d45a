// SPDX-License-Identifier: Apache-2.0
// The subcommands of `tessera config` that have files of their own. Each receives the words after
// its name.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

int explain_file(const std::vector<std::string>& line);
int convert_file(const std::vector<std::string>& line);
int print_schema(const std::vector<std::string>& line);

}  // namespace tessera::cli

// SPDX-License-Identifier: Apache-2.0
// The parts of `tessera bench`. Each gets the words after its name.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

int bench_step(const std::vector<std::string>& line);
int bench_comm(const std::vector<std::string>& line);

}  // namespace tessera::cli

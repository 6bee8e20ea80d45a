// SPDX-License-Identifier: Apache-2.0
// The subcommands of `tessera bench`. Each receives the words after its name.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

int bench_step(const std::vector<std::string>& line);
int bench_comm(const std::vector<std::string>& line);
int bench_io(const std::vector<std::string>& line);
int bench_machine(const std::vector<std::string>& line);
int bench_hosts(const std::vector<std::string>& line);

}  // namespace tessera::cli

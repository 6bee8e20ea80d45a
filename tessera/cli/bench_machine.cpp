// SPDX-License-Identifier: Apache-2.0
// tessera bench machine: measures the rates from which times are predicted, and keeps them.
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/bench_commands.h"
#include "tessera/predict/described_machine.h"
#include "tessera/tune/measure_machine.h"

namespace tessera::cli {

int bench_machine(const std::vector<std::string>& line) {
  std::string out, title;
  Common common;
  Arguments arguments(
      "bench machine",
      "Measures the rates of this machine in less than a minute: products, attention and memory "
      "traffic by size, and the transfers between ranks. `tessera plan --device here` and `tessera "
      "tune` predict with them.",
      {"tessera bench machine",
       "tessera bench machine --out share/machines/cpu-epyc-9005-2.json --title 'AMD EPYC 9005, 2 "
       "cores'"});
  arguments.option("--out", &out, "File for the rates [in the cache folder]");
  arguments.option("--title", &title, "Name of the machine in plans [that of its CPU]");
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  const bool told = !common.quiet && !common.json;
  predict::DescribedMachine machine = tune::measure_machine([&](const std::string& text) {
    if (told) std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  });
  if (!title.empty()) machine.title = title;
  const json::Value value = predict::write_machine(machine);
  const files::fs::path file = out.empty() ? predict::measured_file() : files::fs::path(out);
  if (file.has_parent_path()) files::fs::create_directories(file.parent_path());
  files::write_atomic(file, value.dump(2) + "\n");
  if (common.json) std::printf("%s\n", value.dump(2).c_str());
  if (told) std::printf("%s\n", fmt::format("kept in     {}", file.string()).c_str());
  return kExitOk;
}

}  // namespace tessera::cli

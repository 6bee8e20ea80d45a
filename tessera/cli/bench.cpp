// SPDX-License-Identifier: Apache-2.0
// tessera bench: measures the speed of this machine for the parts of a training.
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/bench_commands.h"
#include "tessera/cli/command.h"

namespace tessera::cli {
namespace {

[[noreturn]] void refuse_measurement(const std::string& what) {
  throw Error(
      Error::Kind::Config,
      "unknown: tessera bench " + what,
      text::suggestion(what, std::vector<std::string>{"step", "comm", "io", "machine", "hosts"}));
}

int bench(const std::vector<std::string>& line) {
  if (!line.empty()) {
    const std::vector<std::string> rest(line.begin() + 1, line.end());
    if (line.front() == "step") return bench_step(rest);
    if (line.front() == "comm") return bench_comm(rest);
    if (line.front() == "io") return bench_io(rest);
    if (line.front() == "machine") return bench_machine(rest);
    if (line.front() == "hosts") return bench_hosts(rest);
    if (!line.front().starts_with("-")) refuse_measurement(line.front());
  }
  std::string what;
  Arguments arguments(
      "bench",
      "Measures the operations of a training step and compares them with the "
      "limits of the machine, or measures the collectives between ranks, a disk, or the rates "
      "from which times are predicted, or simulates how many hosts meet.",
      {"tessera bench step my.json",
       "tessera bench step my.json --set bf16.enabled=true -v",
       "tessera bench comm -n 2",
       "tessera bench io /mnt/nvme",
       "tessera bench machine",
       "tessera bench hosts --hosts 4096",
       "tessera bench comm --help"});
  arguments.positional("WHAT", &what, "step, comm, io, machine or hosts");
  Common common;  // for both subcommands
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  refuse_measurement(what);
}

TESSERA_COMMAND(
    "bench",
    "measure the operations of a step, the collectives, a disk, the machine, or how hosts meet",
    bench);

}  // namespace
}  // namespace tessera::cli

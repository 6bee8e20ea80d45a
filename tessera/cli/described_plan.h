// SPDX-License-Identifier: Apache-2.0
// The machine for which a training is planned: flags that `tessera plan` and `tessera tune` share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/cli/arguments.h"
#include "tessera/interop/foreign_flags.h"
#include "tessera/predict/described_machine.h"

namespace tessera::cli {

/// --device, --hosts, --network and --price.
struct MachineFlags {
  std::string device, network;
  std::optional<std::int64_t> hosts;
  std::optional<double> price;
  void declare(Arguments& arguments);
  /// True if no other machine is asked for than this one.
  [[nodiscard]] bool is_here() const { return device.empty() || device == "here"; }
  /// The machine, by default the one that was measured here, with the network and as many ranks on
  /// each host as follow from --hosts. Throws Error{Config}.
  [[nodiscard]] predict::DescribedMachine machine(int ranks) const;
};

/// interop::take_foreign_flags() that leaves the flags of MachineFlags, since --device means
/// another thing in other programs.
interop::ForeignFlags take_foreign_flags_but_machine(std::vector<std::string>& words);

/// True if the words after `tessera plan` ask for a plan on a described machine.
bool describes_machine(const std::vector<std::string>& line);
/// tessera plan CONFIG --device ...
int described_plan(const std::vector<std::string>& line);

}  // namespace tessera::cli

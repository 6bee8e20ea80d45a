// SPDX-License-Identifier: Apache-2.0
// Machines and networks that are described in files, so that a training can be planned for a
// machine that is not here.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/machine.h"
#include "tessera/config/json.h"

namespace tessera::predict {

/// The share of a peak rate that operations of a size reach: points in ascending order of the size,
/// linear in the logarithm of the size between two of them, constant outside. Source: the tables of
/// Calculon (Isaev et al. 2023).
struct Curve {
  std::vector<std::pair<double, double>> points;  ///< size, share
  [[nodiscard]] double at(double size) const;     ///< 1 if there are no points
  bool operator==(const Curve&) const = default;
};

/// The way in which ranks of the machine run a collective.
enum class Collectives : std::uint8_t {
  Own,  ///< as tessera's transports (comm/cost.h)
  Ring  ///< as NCCL's rings: each byte crosses every link between hosts once
};

/// The highest share of the rate of memory in a description: caches may be this much faster.
inline constexpr double kMostOfMemory = 100;

/// The rates of products, and the shares of rates that calls of a size reach.
struct OperationRates {
  /// FLOPs per second of a perfect product, by dtype.
  std::map<DType, double> peak;
  /// The share of `peak` by class and FLOPs of one call. A class that is absent is limited by
  /// memory.
  std::map<ShapeClass, Curve> efficiency;
  /// The same for one dtype, where it differs.
  std::map<DType, std::map<ShapeClass, Curve>> efficiency_of;
  /// The share of the rate of memory by the bytes of one call; above 1 where caches hold them.
  Curve memory_efficiency;
  /// The same for one class of operations, where it differs.
  std::map<ShapeClass, Curve> memory_efficiency_of;

  /// The curve of a class; nullptr if it is limited by memory.
  [[nodiscard]] const Curve* shares(DType type, ShapeClass shape) const;
  [[nodiscard]] const Curve& memory_shares(ShapeClass shape) const;
};

/// The rates of a rank with fewer threads than the machine has cores.
struct ThreadRates : OperationRates {
  Rate memory;
  double op_overhead_s = 0;
};

/// A machine: rates of one rank, which is a device or a share of the cores of a host.
struct DescribedMachine : OperationRates {
  std::string name, title, source;  ///< source: where the numbers come from
  /// Links, memory and the overhead of an operation; its flops_per_s stay empty.
  Machine rates;
  std::map<int, ThreadRates> of_threads;  ///< by the number of threads; see with_threads()
  Collectives collectives = Collectives::Ring;
  /// The share of a second by which computation is delayed for each second of a transfer that runs
  /// at the same time.
  double overlap_tax = 0;
  /// Seconds for which a rank waits at each step: for the host, the data, the other ranks.
  double step_overhead_s = 0;
  double memory_bytes = 0;  ///< of a rank
  /// The cores with which the rates were measured; 0: a rank has the rates whatever its threads.
  int cores = 0;
  double price_per_hour = 0;  ///< of a rank; 0: unknown
  /// The half of the interval around a predicted time, as a share of it.
  double uncertainty = 0.1;
};

/// Reads a description. Throws Error{Config} with the place of a key that is unknown, missing or
/// has a wrong value; for a rate that can be measured it names the command that measures it.
DescribedMachine read_machine(const json::Value& source);

/// A link between hosts.
struct Network {
  std::string name;
  Rate rate;             ///< of one rank, or of a host whose ranks share it
  bool of_host = false;  ///< the ranks of a host share the rate
};

/// The machine of that name: a file NAME.json, or one of the machines that ship with tessera or are
/// in the folder TESSERA_MACHINES. "here" is the machine that `tessera bench machine` measured.
/// Throws Error{Config} with the known names if there is none.
DescribedMachine find_machine(const std::string& name);
/// The names of all machines that find_machine() knows, in alphabetical order.
std::vector<std::string> machine_names();
/// The network of that name ("ib400": 400 Gbit/s for each rank; "eth25": 25 Gbit/s for each host),
/// or "400G": that rate for each rank. Throws Error{Config} with the known names.
Network find_network(const std::string& name);
/// The machine with this network between its hosts.
DescribedMachine with_network(DescribedMachine machine, const Network& network);

/// The rates of a rank with `threads` threads: those that were measured with as many, or the share
/// of those with the nearest number; see DescribedMachine::cores.
DescribedMachine with_threads(DescribedMachine machine, int threads);

/// The file in which the measured rates of this machine are kept.
std::filesystem::path measured_file();
/// The JSON of a description, which read_machine() reads.
json::Value write_machine(const DescribedMachine& machine);

}  // namespace tessera::predict

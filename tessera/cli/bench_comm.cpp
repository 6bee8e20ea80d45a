// SPDX-License-Identifier: Apache-2.0
// tessera bench comm: measures the speed of communication between ranks.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/bench_commands.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/comm/measure.h"
#include "tessera/comm/registry.h"
#include "tessera/config/json.h"
#include "tessera/engine/launch.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/launch/launch.h"
#include "tessera/mesh/mesh.h"

namespace tessera::cli {
namespace {

struct CommFlags {
  std::optional<std::int64_t> ranks;
  std::string sizes = "1,16,256", transport = "shm", memory = "both";
  std::int64_t repetitions = 7;
  double seconds = 60;
  Common common;
};

bool parse(CommFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "bench comm",
      "Measures every collective between ranks, in shared memory that peers read directly "
      "(\"regions\") and in ordinary memory, which is copied there first. Algorithm bandwidth: "
      "bytes "
      "of the vector per second; bus bandwidth: bytes per second that a rank exchanges with "
      "others.",
      {"tessera bench comm",
       "tessera bench comm -n 4 --sizes 0.25,4 --memory regions",
       "tessera bench comm --transport threads --sizes 16",
       "tessera bench comm --json"});
  arguments.option(kRanksOption, &words.ranks, "Local ranks [2]");
  arguments.option("--sizes", &words.sizes, "Vector sizes in MiB, comma-separated [1,16,256]");
  arguments.option("--transport",
                   &words.transport,
                   "shm (processes) or threads; between the hosts of a launcher gloo or mpi [shm, "
                   "and gloo between hosts]");
  arguments.option("--memory", &words.memory, "regions, ordinary or both [both]");
  arguments.option(
      "--repetitions", &words.repetitions, "Number of repetitions; the median is reported [7]");
  arguments.option("--seconds",
                   &words.seconds,
                   "Time for all measurements, for example over a slow network: fewer repetitions, "
                   "then fewer measurements [60]");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

void require_one_of(const char* flag,
                    const std::string& given,
                    const std::vector<std::string>& known) {
  TESSERA_REQUIRE(std::find(known.begin(), known.end(), given) != known.end(),
                  Config,
                  fmt::format("{} {}: expected {}", flag, given, text::join(known, ", ")),
                  text::suggestion(given, known));
}

std::vector<std::size_t> bytes_of(const std::string& sizes) {
  constexpr double kMiB = 1 << 20, kMost = 65536;
  std::vector<std::size_t> out;
  for (std::size_t begin = 0; begin <= sizes.size();) {
    const std::size_t end = std::min(sizes.find(',', begin), sizes.size());
    const std::string word = sizes.substr(begin, end - begin);
    char* rest = nullptr;
    const double mib = std::strtod(word.c_str(), &rest);
    TESSERA_REQUIRE(
        !word.empty() && *rest == '\0' && mib * kMiB >= 4096 && mib <= kMost,
        Config,
        fmt::format(
            "--sizes {}: \"{}\" is not a size from 4096 bytes to {} MiB", sizes, word, kMost),
        "give comma-separated MiB: --sizes 0.25,1,16");
    out.push_back(static_cast<std::size_t>(mib * kMiB));
    begin = end + 1;
  }
  return out;
}

comm::MeasureOptions options_of(const CommFlags& words) {
  std::vector<std::string> ways = comm::links().names();
  ways.insert(ways.begin(), {"shm", "threads"});
  require_one_of("--transport", words.transport, ways);
  require_one_of("--memory", words.memory, {"regions", "ordinary", "both"});
  TESSERA_REQUIRE(words.repetitions >= 1 && words.repetitions <= 10'000,
                  Config,
                  fmt::format("--repetitions {}: expected 1 to 10000", words.repetitions),
                  "");
  TESSERA_REQUIRE(
      words.seconds > 0 && words.seconds <= 86'400,
      Config,
      fmt::format("--seconds {}: expected more than 0 and at most 86400", words.seconds),
      "");
  return {.bytes = bytes_of(words.sizes),
          .repetitions = static_cast<int>(words.repetitions),
          .seconds = words.seconds,
          .in_regions = words.memory != "ordinary",
          .ordinary = words.memory != "regions"};
}

int ranks_of_comm(const CommFlags& words) {
  const bool launched = hosts::detect_launcher().has_value();
  const int ranks = ranks_of(launched ? words.ranks : words.ranks.value_or(2));
  TESSERA_REQUIRE(ranks >= 2,
                  Config,
                  fmt::format("-n {}: a single rank has no collectives to measure", ranks),
                  "use -n 2 or more");
  TESSERA_REQUIRE(!launched || words.transport != "threads",
                  Unsupported,
                  "not supported under a launcher, which starts processes: --transport threads",
                  "start it without the launcher: tessera bench comm --transport threads");
  return ranks;
}

/// Returns the link between hosts. Throws if it cannot be used, or if there is one host.
std::string link_of(const CommFlags& words) {
  if (words.transport == "shm" || words.transport == "threads") return "auto";
  const auto launcher = hosts::detect_launcher();
  TESSERA_REQUIRE(launcher && launcher->several_hosts(),
                  Config,
                  fmt::format("--transport {} moves data between hosts, and all ranks are on one",
                              words.transport),
                  "start it with torchrun, mpirun or srun on several hosts, or remove --transport");
  comm::check_link(words.transport);
  return words.transport;
}

void check_memory(const comm::MeasureOptions& options, int ranks) {
  const std::uint64_t need = std::uint64_t{comm::measure_memory(options)} * ranks;
  const std::uint64_t available = launch::available_memory();
  TESSERA_REQUIRE(need <= available,
                  Memory,
                  fmt::format("the vectors of {} ranks need {}, but only {} are free",
                              ranks,
                              text::bytes(need),
                              text::bytes(available)),
                  "give smaller --sizes, fewer ranks, or --memory regions");
}

json::Value speed_json(const comm::CollectiveSpeed& speed) {
  json::Value out;
  out["operation"] = json::Value::string(speed.operation);
  out["memory"] = json::Value::string(speed.in_regions ? "regions" : "ordinary");
  out["bytes"] = json::Value::integer(static_cast<std::int64_t>(speed.bytes));
  if (speed.seconds <= 0) return out;  // there was no time for it
  out["seconds"] = json::Value::number(speed.seconds);
  out["algorithm_bytes_per_s"] = json::Value::number(speed.algorithm_bandwidth());
  out["bus_bytes_per_s"] = json::Value::number(speed.bus_bandwidth());
  return out;
}

std::string speed_line(const comm::CollectiveSpeed& speed) {
  if (speed.seconds <= 0) {
    return fmt::format("{:<15} {:<9} {:>10}   no time left (--seconds)",
                       speed.operation,
                       speed.in_regions ? "regions" : "ordinary",
                       text::bytes(speed.bytes));
  }
  return fmt::format("{:<15} {:<9} {:>10} {:>11.1f} {:>15.2f} {:>9.2f}",
                     speed.operation,
                     speed.in_regions ? "regions" : "ordinary",
                     text::bytes(speed.bytes),
                     1e6 * speed.seconds,
                     speed.algorithm_bandwidth() / 1e9,
                     speed.bus_bandwidth() / 1e9);
}

/// Prints one line per result as soon as it is known; with JSON, one object per line.
void measure(comm::World& world, const comm::MeasureOptions& options, const Common& common) {
  const bool table = !common.json && !common.quiet;
  if (table && world.is_leader()) {
    std::printf("%s\n",
                fmt::format("{:<15} {:<9} {:>10} {:>11} {:>15} {:>9}",
                            "operation",
                            "memory",
                            "bytes",
                            "us",
                            "algorithm GB/s",
                            "bus GB/s")
                    .c_str());
    std::fflush(stdout);  // the first result of a slow network is late
  }
  comm::measure_collectives(world, options, [&](const comm::CollectiveSpeed& speed) {
    if (common.json) std::printf("%s\n", speed_json(speed).dump().c_str());
    if (table) std::printf("%s\n", speed_line(speed).c_str());
    std::fflush(stdout);
  });
}

}  // namespace

int bench_comm(const std::vector<std::string>& line) {
  CommFlags words;
  if (!parse(words, line)) return kExitOk;
  const comm::MeasureOptions options = options_of(words);
  const int ranks = ranks_of_comm(words);
  const std::string link = link_of(words);
  check_memory(options, ranks);
  if (words.transport == "threads") {
    comm::run_threads(ranks, [&](comm::World& world) { measure(world, options, words.common); });
    return kExitOk;
  }
  return engine::run_ranks(
      mesh::Mesh::data_parallel(ranks),
      /*threads=*/1,
      engine::log_failure,
      [&](comm::World& world) {
        measure(world, options, words.common);
        if (world.is_leader()) require_output_written();
        return kExitOk;
      },
      link);
}

}  // namespace tessera::cli

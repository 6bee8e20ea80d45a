// SPDX-License-Identifier: Apache-2.0
// Measures collectives between two local ranks over shared memory, for run_comm.sh.
//
//   comm_bench [REPETITIONS]
//
// Prints one JSON line per operation and size. Bytes are those of the whole vector, counted once,
// as in the reference script; the time is rank 0's median, from barrier to completion.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/measure.h"
#include "tessera/comm/transports/shm.h"
#include "tessera/comm/world.h"
#include "tessera/launch/launch.h"

namespace {

constexpr int kRanks = 2;

/// Names of the operations in the reference script; operations it does not measure are omitted.
const std::map<std::string, std::string> kNames = {{"all-reduce", "allreduce"},
                                                   {"reduce-scatter", "reduce_scatter"},
                                                   {"all-gather", "allgather"},
                                                   {"send/recv", "sendrecv"}};

int bench(const tessera::launch::RankInfo& info, int repetitions) {
  tessera::ControlPage* control = tessera::launch::map_control(info.control, info.world_size);
  tessera::comm::World world(
      info.rank,
      tessera::mesh::Mesh::data_parallel(info.world_size),
      tessera::comm::make_shm_transport(info.rank, info.arenas, info.arena_bytes, control),
      control);
  tessera::comm::MeasureOptions options{.repetitions = repetitions};
  options.bytes = {std::size_t{1} << 20, std::size_t{16} << 20, std::size_t{256} << 20};
  tessera::comm::measure_collectives(
      world, options, [](const tessera::comm::CollectiveSpeed& speed) {
        const auto name = kNames.find(speed.operation);
        if (name == kNames.end()) return;
        const std::string line =
            fmt::format(R"({{"what": "{}", "op": "{}", "mb": {}, "s": {:.6f}, "gbs": {:.2f}}})",
                        speed.in_regions ? "tessera shm" : "tessera shm, ordinary memory",
                        name->second,
                        speed.bytes >> 20,
                        speed.seconds,
                        speed.algorithm_bandwidth() / 1e9);
        std::printf("%s\n", line.c_str());
        std::fflush(stdout);
      });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  tessera::launch::Options options;
  options.ranks = kRanks;
  options.report = [](const std::vector<std::string>& lines, int) {
    for (const std::string& line : lines)
      std::fprintf(stderr, "%s\n", line.c_str());
  };
  try {
    return tessera::launch::launch(options, [repetitions](const tessera::launch::RankInfo& info) {
      return bench(info, repetitions);
    });
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", error.text().c_str());
    return tessera::exit_code(error.kind());
  }
}

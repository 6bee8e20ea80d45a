// SPDX-License-Identifier: Apache-2.0
// Collectives between two local ranks over shared memory: the tessera side of run_comm.sh.
//
//   comm_bench [REPETITIONS]
//
// One JSON line for each operation and size. Bytes are those of the whole vector, counted once, as
// the peer's script counts them; the time is rank 0's median, from barrier to completion.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/comm/transports/shm.h"
#include "tessera/comm/world.h"
#include "tessera/launch/launch.h"

namespace {

using tessera::comm::Fold;
using tessera::comm::Group;
using tessera::comm::Op;
using tessera::comm::Span;
using tessera::comm::Transport;

constexpr int kRanks = 2;
constexpr std::size_t kMegabytes[] = {1, 16, 256};

/// Two vectors that peers can read, of `count` floats each.
struct Buffers {
  tessera::comm::RegionPtr in_region, out_region;
  Span in, out;

  Buffers(Transport& transport, std::size_t count, int rank)
      : in_region(transport.allocate(count * sizeof(float), tessera::memory::Tag::Other)),
        out_region(transport.allocate(count * sizeof(float), tessera::memory::Tag::Other)),
        in{.data = in_region->data(), .count = count},
        out{.data = out_region->data(), .count = count} {
    std::fill_n(static_cast<float*>(in.data), count, static_cast<float>(rank + 1));
    std::fill_n(static_cast<float*>(out.data), count, 0.0F);
  }
};

void all_reduce(Transport& transport, const Group& group, Buffers& buffers) {
  transport.all_reduce(group, buffers.out, Op::Sum, TESSERA_HERE("bench"))->wait();
}
void reduce_scatter(Transport& transport, const Group& group, Buffers& buffers) {
  const Span part = buffers.out.part(0, buffers.in.count / kRanks);
  const auto work = transport.reduce_scatter(
      group, buffers.in, part, Op::Sum, Fold::Store, TESSERA_HERE("bench"));
  work->wait();
  work->wait_reusable();
}
void all_gather(Transport& transport, const Group& group, Buffers& buffers) {
  const Span mine = buffers.in.part(0, buffers.out.count / kRanks);
  const auto work = transport.all_gather(group, mine, buffers.out, TESSERA_HERE("bench"));
  work->wait();
  work->wait_reusable();
}
// Both ways at once.
void send_recv(Transport& transport, const Group& group, Buffers& buffers) {
  const int peer = group.ranks[static_cast<std::size_t>(1 - group.index)];
  const auto sent = transport.send(peer, 0, buffers.in, TESSERA_HERE("bench"));
  transport.recv(peer, 0, buffers.out, TESSERA_HERE("bench"))->wait();
  sent->wait_reusable();
}

struct Case {
  const char* name;
  void (*run)(Transport&, const Group&, Buffers&);
};
constexpr Case kCases[] = {{"allreduce", all_reduce},
                           {"reduce_scatter", reduce_scatter},
                           {"allgather", all_gather},
                           {"sendrecv", send_recv}};

double median_seconds(tessera::comm::World& world,
                      const Case& what,
                      Buffers& buffers,
                      int repetitions) {
  Transport& transport = world.transport();
  const Group& group = world.everyone();
  const int calls = buffers.in.bytes() > (std::size_t{64} << 20) ? 1 : 20;
  std::vector<double> seconds;
  for (int i = 0; i <= repetitions; ++i) {  // the first one warms up
    transport.barrier(group, TESSERA_HERE("bench"))->wait();
    const double begin = tessera::now_s();
    for (int call = 0; call < calls; ++call)
      what.run(transport, group, buffers);
    if (i > 0) seconds.push_back((tessera::now_s() - begin) / calls);
  }
  std::nth_element(seconds.begin(), seconds.begin() + repetitions / 2, seconds.end());
  return seconds[static_cast<std::size_t>(repetitions / 2)];
}

int bench(const tessera::launch::RankInfo& info, int repetitions) {
  tessera::ControlPage* control = tessera::launch::map_control(info.control, info.world_size);
  tessera::comm::World world(
      info.rank,
      tessera::mesh::Mesh::data_parallel(info.world_size),
      tessera::comm::make_shm_transport(info.rank, info.arenas, info.arena_bytes, control),
      control);
  for (const std::size_t megabytes : kMegabytes) {
    const std::size_t bytes = megabytes << 20;
    Buffers buffers(world.transport(), bytes / sizeof(float), world.rank());
    for (const Case& what : kCases) {
      const double seconds = median_seconds(world, what, buffers, repetitions);
      if (!world.speaks()) continue;
      const std::string line = fmt::format(
          R"({{"what": "tessera shm", "op": "{}", "mb": {}, "s": {:.6f}, "gbs": {:.2f}}})",
          what.name,
          megabytes,
          seconds,
          static_cast<double>(bytes) / seconds / 1e9);
      std::printf("%s\n", line.c_str());
      std::fflush(stdout);
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("bench"))->wait();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  tessera::launch::Options options;
  options.ranks = kRanks;
  options.report = [](const std::vector<std::string>& lines) {
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

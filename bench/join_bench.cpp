// SPDX-License-Identifier: Apache-2.0
// Measures how long the hosts of a large job take to meet: simulated agents in one process, over
// loopback.
//   join_bench [AGENTS]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/hosts/coordinator.h"
#include "tessera/hosts/coordinator_client.h"
#include "tessera/hosts/frames.h"
#include "tessera/launch/shared_files.h"

namespace {

using namespace tessera;
using namespace tessera::hosts;

void meet(int agents) {
  tessera::launch::allow_descriptors(2 * static_cast<std::size_t>(agents));
  CoordinatorOptions options;
  options.address = "127.0.0.1";
  options.secret = random_secret();
  options.world_size = agents;
  Coordinator coordinator(options);
  coordinator.start();
  const HostFacts facts = facts_of_this_host();
  const double begin = now_s();
  std::vector<std::unique_ptr<FrameClient>> clients;
  for (int i = 0; i < agents; ++i) {
    clients.push_back(std::make_unique<FrameClient>(
        "127.0.0.1", coordinator.port(), 1, options.secret, now_s() + 30.0));
    HostPart part;
    part.host = part.first_rank = i;
    part.world_size = agents;
    part.name = "node-" + std::to_string(i);
    clients.back()->send(join_frame(part, facts));
  }
  int ready = 0;
  for (const auto& client : clients) {
    for (const double until = now_s() + 30.0; now_s() < until;) {
      const std::optional<Frame> frame = client->receive(until);
      if (!frame) break;
      if (frame->type != FrameType::Ready) continue;
      ++ready;
      break;
    }
  }
  std::printf("%d of %d agents have met in %.2f s\n", ready, agents, now_s() - begin);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    meet(argc > 1 ? std::atoi(argv[1]) : 1024);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

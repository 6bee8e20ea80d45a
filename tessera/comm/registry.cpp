// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/registry.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::comm {

Registry<TransportEntry>& transports() {
  static Registry<TransportEntry> registry("transport");
  return registry;
}

Registry<LinkEntry>& links() {
  static Registry<LinkEntry> registry("link between hosts");
  return registry;
}

std::vector<std::string> link_choices() {
  std::vector<std::string> out = links().names();
  out.insert(out.begin(), "auto");
  return out;
}

std::string link_name(std::string_view choice) {
  if (choice != "auto") {
    static_cast<void>(links().get(choice));
    return std::string(choice);
  }
  std::string best;
  for (const std::string& name : links().names()) {
    if (best.empty() || links().get(name).rank_of_choice < links().get(best).rank_of_choice)
      best = name;
  }
  TESSERA_REQUIRE(!best.empty(),
                  Unsupported,
                  "this program contains no link between hosts",
                  "link the library tessera, which registers them");
  return best;
}

void check_link(std::string_view choice) {
  const LinkEntry& link = links().get(link_name(choice));
  if (link.check != nullptr) link.check();
}

std::string transport_name(const WorldNeeds& needs, DeviceKind kind) {
  std::string best;
  std::vector<std::string> reasons;
  for (const std::string& name : transports().names()) {
    const TransportEntry& entry = transports().get(name);
    if (entry.moves != kind) continue;
    if (const std::string reason = entry.why_not(needs); !reason.empty()) {
      reasons.push_back(name + ": " + reason);
    } else if (best.empty() || entry.rank_of_choice < transports().get(best).rank_of_choice) {
      best = name;
    }
  }
  TESSERA_REQUIRE(!best.empty(),
                  Unsupported,
                  fmt::format("no transport connects {} ranks whose tensors are in memory of kind "
                              "\"{}\"{}{}",
                              needs.mesh.size(),
                              name(kind),
                              reasons.empty() ? "" : ": ",
                              text::join(reasons, "; ")),
                  "docs/adding/transport.md shows how a transport is added");
  return best;
}

std::unique_ptr<World> make_world(const WorldNeeds& needs, ControlPage* control) {
  const auto make = [&](DeviceKind kind, const std::shared_ptr<Transport>& host) {
    return transports().get(transport_name(needs, kind)).make(needs, control, host);
  };
  MadeTransport made = make(DeviceKind::Cpu, nullptr);
  const World::Host host = made.host;
  const std::shared_ptr<Transport> of_host = std::move(made.transport);
  std::shared_ptr<Transport> of_device;
  if (needs.device.kind != DeviceKind::Cpu) of_device = make(needs.device.kind, of_host).transport;
  auto world = std::make_unique<World>(needs.info.rank,
                                       needs.mesh,
                                       of_host,
                                       std::move(of_device),
                                       std::shared_ptr<ControlPage>(control, [](ControlPage*) {}));
  world->set_host(host);
  return world;
}

}  // namespace tessera::comm

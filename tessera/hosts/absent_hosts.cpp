// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/absent_hosts.h"

namespace tessera::hosts {

void AbsentHosts::add(const std::string& name, double now) {
  hosts_[name] = {now + interval_s_};
}

bool AbsentHosts::look(double now) {
  bool found = false;
  for (auto& [name, host] : hosts_) {
    if (host.reachable) continue;
    if (!host.tried && now >= host.next) {
      host.tried = true;
      reach_.try_to_reach(name);
    }
    if (!host.tried) continue;
    const std::optional<bool> reached = reach_.reached(name);
    if (!reached) continue;
    host.tried = false;
    host.next = now + interval_s_;
    host.reachable = *reached;
    found = found || host.reachable;
  }
  return found;
}

HostPool AbsentHosts::left(const HostPool& pool, bool reachable) const {
  HostPool out;
  for (const HostSlots& one : pool) {
    const auto found = hosts_.find(one.name);
    if (found == hosts_.end() || (reachable && found->second.reachable)) out.push_back(one);
  }
  return out;
}

void AbsentHosts::welcome() {
  std::erase_if(hosts_, [](const auto& host) { return host.second.reachable; });
}

}  // namespace tessera::hosts

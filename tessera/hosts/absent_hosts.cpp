// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/absent_hosts.h"

#include <algorithm>
#include <csignal>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/process.h"
#include "tessera/hosts/ssh.h"

namespace tessera::hosts {
namespace {

constexpr double kAttemptS = 10.0;

}  // namespace

AbsentHosts::AbsentHosts(const RemoteOptions& options, double interval_s)
    : options_(options), interval_s_(interval_s) {}

AbsentHosts::~AbsentHosts() {
  for (const Host& host : hosts_) {
    if (host.attempt == 0) continue;
    kill(-host.attempt, SIGKILL);
    waitpid(host.attempt, nullptr, 0);
  }
}

void AbsentHosts::add(const std::string& name) {
  hosts_.push_back({name, now_s() + interval_s_});
}

bool AbsentHosts::look() {
  const double now = now_s();
  bool found = false;
  for (Host& host : hosts_) {
    if (host.reachable) continue;
    int status = 0;
    if (host.attempt != 0 && waitpid(host.attempt, &status, WNOHANG) == host.attempt) {
      host.attempt = 0;
      host.next = now + interval_s_;
      host.reachable = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      found = found || host.reachable;
    } else if (host.attempt != 0 && now > host.since + kAttemptS) {
      kill(-host.attempt, SIGKILL);
    } else if (host.attempt == 0 && now >= host.next) {
      try_to_reach(host);
      found = found || host.reachable;
    }
  }
  return found;
}

void AbsentHosts::try_to_reach(Host& host) {
  host.next = now_s() + interval_s_;
  if (is_this_host(host.name)) {
    host.reachable = true;
    return;
  }
  host.since = now_s();
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  host.attempt =
      spawn_in_group(ssh_probe(options_, host.name),
                     {{nothing, STDIN_FILENO}, {nothing, STDOUT_FILENO}, {nothing, STDERR_FILENO}});
  close(nothing);
}

HostPool AbsentHosts::left(const HostPool& pool, bool reachable) const {
  HostPool out;
  for (const HostSlots& one : pool) {
    const auto found = std::find_if(
        hosts_.begin(), hosts_.end(), [&](const Host& host) { return host.name == one.name; });
    if (found == hosts_.end() || (reachable && found->reachable)) out.push_back(one);
  }
  return out;
}

void AbsentHosts::welcome() {
  std::erase_if(hosts_, [](const Host& host) { return host.reachable; });
}

}  // namespace tessera::hosts

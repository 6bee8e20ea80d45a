// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/absent_hosts.h"

#include <algorithm>
#include <csignal>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/launch/ssh.h"

namespace tessera::launch {
namespace {

constexpr double kAttemptS = 10.0;

/// Starts `words` without input and output, with no signal blocked. Other threads may exist.
/// Returns 0 if it cannot be started.
pid_t spawn_silently(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words)
    argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &files, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  return error == 0 ? child : 0;
}

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
  host.attempt = spawn_silently(ssh_probe(options_, host.name));
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

}  // namespace tessera::launch

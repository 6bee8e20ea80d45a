// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/ssh_reach.h"

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

SshReach::~SshReach() {
  for (const auto& [host, attempt] : attempts_) {
    kill(-attempt.process, SIGKILL);
    waitpid(attempt.process, nullptr, 0);
  }
}

void SshReach::try_to_reach(const std::string& host) {
  if (is_this_host(host)) return;
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  const pid_t process =
      spawn_in_group(ssh_probe(options_, host),
                     {{nothing, STDIN_FILENO}, {nothing, STDOUT_FILENO}, {nothing, STDERR_FILENO}});
  close(nothing);
  if (process > 0) attempts_[host] = {process, now_s()};
}

std::optional<bool> SshReach::reached(const std::string& host) {
  if (is_this_host(host)) return true;
  const auto found = attempts_.find(host);
  if (found == attempts_.end()) return false;  // it could not be started
  const Attempt attempt = found->second;
  int status = 0;
  if (waitpid(attempt.process, &status, WNOHANG) == attempt.process) {
    attempts_.erase(found);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (now_s() > attempt.since + kAttemptS) kill(-attempt.process, SIGKILL);
  return std::nullopt;
}

}  // namespace tessera::hosts

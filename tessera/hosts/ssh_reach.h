// SPDX-License-Identifier: Apache-2.0
// Attempts to reach hosts over ssh.
#pragma once

#include <map>
#include <optional>
#include <string>

#include <sys/types.h>

#include "tessera/hosts/absent_hosts.h"
#include "tessera/hosts/run_on_hosts.h"

namespace tessera::hosts {

/// Runs the program on a host, over ssh, for at most 10 s. This host itself is always reached.
/// Threads: one.
class SshReach final : public ReachHosts {
 public:
  /// `options` must outlive this object.
  explicit SshReach(const RemoteOptions& options) : options_(options) {}
  /// Ends attempts that are under way.
  ~SshReach() override;
  void try_to_reach(const std::string& host) override;
  std::optional<bool> reached(const std::string& host) override;

 private:
  struct Attempt {
    pid_t process = 0;
    double since = 0.0;
  };
  const RemoteOptions& options_;
  std::map<std::string, Attempt> attempts_;
};

}  // namespace tessera::hosts

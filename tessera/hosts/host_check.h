// SPDX-License-Identifier: Apache-2.0
// Checks that the hosts of a job make of each other before their ranks begin: whether the ranks can
// connect with each other, and whether all hosts see one run folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/hosts/run_folder_check.h"
#include "tessera/launch/shared_files.h"

namespace tessera::hosts {

/// A socket of this host that other hosts try to reach. It accepts nobody and reads nothing: the
/// kernel completes the connections. Closed when destroyed.
class ProbeListener {
 public:
  /// Listens on any free port of `address`. If that fails, port() is 0 and why() says why.
  explicit ProbeListener(const std::string& address);
  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  launch::Fd fd_;
  int port_ = 0;
  std::string why_;
};

/// The name of another host, and the address and port at which it can be reached.
struct HostAddress {
  std::string host;  ///< its name
  std::string address;
  int port = 0;
};
/// Maximum number of addresses that one host is asked to try.
inline constexpr std::uint32_t kMostProbes = 64;
/// Connects to all addresses at once and closes the connections. Returns a text for each one that
/// could not be reached within `timeout_s`: "node-1 at 10.0.0.2: no answer within 4 s".
std::vector<std::string> unreachable(const std::vector<HostAddress>& addresses, double timeout_s);

/// Returns the address on which the ranks of this host listen for others: that of the interface
/// that GLOO_SOCKET_IFNAME names, otherwise `way_to_head`. Throws Error{Config} if there is no such
/// interface, or if it has no address.
std::string listening_address(const std::string& way_to_head);

/// Returns the indices of the hosts that host `own` of `hosts` tries to reach: all others of up to
/// 32 hosts, otherwise those at distances 1, 2, 4, ...: about log2(hosts) connections for each.
std::vector<int> hosts_to_reach(int own, int hosts);

/// A file in the run folder by which other hosts recognize that folder. Removed when destroyed.
class FolderMark {
 public:
  /// Writes the file; mark() is empty if it cannot be written.
  explicit FolderMark(const std::string& folder);
  ~FolderMark();
  FolderMark(const FolderMark&) = delete;
  FolderMark& operator=(const FolderMark&) = delete;
  [[nodiscard]] const std::string& mark() const { return mark_; }

 private:
  std::string path_, mark_;
};
/// Returns the name of a network file system by the number that statfs(2) has for it, "NFS"; empty
/// for any other: hosts cannot share it.
std::string_view network_file_system(std::uint64_t type);
/// Throws Error{Config} if the job of several hosts saves only where each host has a run folder of
/// its own, and `folder`, or the nearest of its parents that exists, is on a network file system. A
/// dry run asks no other host; the hosts themselves find out with a FolderMark.
void check_own_folder(const RunFolderCheck& folder);

/// Returns whether `folder` contains the file of a FolderMark. A network file system may show a new
/// file late: it is looked for during `patience_s`.
bool sees_mark(const std::string& folder, const std::string& mark, double patience_s);

}  // namespace tessera::hosts

// SPDX-License-Identifier: Apache-2.0
// Memory of a host for copies of a training's state. It belongs to a process that outlives the
// ranks of a job, so that they start again from it without a disk.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/hosts/secret.h"

namespace tessera::hosts {

/// Names the copies of one step. A later generation of the ranks (HostPart::generation) is newer,
/// whatever its step is.
struct CopySet {
  std::int32_t generation = -1;  ///< negative: none
  std::int64_t step = -1;
  auto operator<=>(const CopySet&) const = default;
  [[nodiscard]] bool exists() const { return generation >= 0; }
};

/// The files of one set that a server holds.
struct CopyListing {
  CopySet set;
  std::int32_t num_ranks = 0;  ///< ranks that write the set
  std::vector<std::string> names;
  std::vector<std::int32_t> ranks;  ///< ranks of which the server has the last file
};

/// Keeps files in the memory of this process and serves them to processes that know the secret of
/// the job. A file appears when all of its bytes have arrived. When a rank begins to write a set,
/// all sets but that one and the last complete one, which the rank names, are deleted: two sets are
/// held at most. Ranks of an earlier generation than the newest known one are refused. Threads: one
/// for each connection; the methods may be called from any thread.
class CopyServer {
 public:
  /// Listens on any free port of `address`. Throws Error{Environment} if that is not possible.
  CopyServer(const std::string& address, const Secret& secret);
  /// Ends all connections.
  ~CopyServer();
  CopyServer(const CopyServer&) = delete;
  CopyServer& operator=(const CopyServer&) = delete;

  [[nodiscard]] int port() const;
  [[nodiscard]] std::vector<CopyListing> list() const;
  /// Returns the bytes of all files, including those that are arriving.
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Runs a server in this process, as the process that starts the hosts asks for on standard input
/// (copy_servers.h): writes its address to standard output, and returns when standard input ends or
/// has been silent for five minutes. Throws Error{Config} if the request is not one.
void run_copy_server();

/// The request that run_copy_server() reads. `coordinator`: an address of the process that asks;
/// the server listens on the interface that leads to it.
std::string copy_server_request(const Secret& secret, const std::string& coordinator);

}  // namespace tessera::hosts

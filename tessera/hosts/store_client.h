// SPDX-License-Identifier: Apache-2.0
// Values that the ranks of several hosts exchange before their transport exists: the coordinator of
// the job keeps them.
#pragma once

#include <map>
#include <string>

#include "tessera/hosts/frames.h"
#include "tessera/hosts/host_part.h"

namespace tessera::hosts {

/// The connection of one rank to the coordinator. Threads: one.
class StoreClient {
 public:
  /// Connects to the coordinator. Throws as FrameClient.
  StoreClient(const HostPart& part, double timeout_s);

  /// Returns the address of this host on the way to the coordinator.
  [[nodiscard]] std::string own_address() const { return client_.own_address(); }
  /// Sets a value for all ranks. Throws Error{Comm} if the connection is lost.
  void set(const std::string& key, std::string_view value);
  /// Waits until somebody has set the value. Throws Error{Comm} if that takes longer than
  /// `timeout_s`.
  const std::string& get(const std::string& key, double timeout_s);
  const std::string& get(const std::string& key) { return get(key, timeout_s_); }

 private:
  double timeout_s_;
  FrameClient client_;
  std::map<std::string, std::string> values_;
};

}  // namespace tessera::hosts

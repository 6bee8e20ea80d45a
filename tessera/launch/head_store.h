// SPDX-License-Identifier: Apache-2.0
// The values that a head keeps for the ranks of its job (FrameType::Set and Get).
#pragma once

#include <map>
#include <string>

#include "tessera/launch/head_connections.h"

namespace tessera::launch {

/// A request for a value is answered as soon as somebody has set it. Threads: one.
class HeadStore {
 public:
  /// `values`: those that are there from the beginning; `connections` must outlive this object.
  HeadStore(std::map<std::string, std::string> values, HeadConnections& connections);
  /// Throws Error{Comm} for too many values.
  void set(const std::string& key, const std::string& value);
  void get(HeadPeer& peer, const std::string& key);
  /// Forgets the requests of a peer whose connection has ended.
  void forget(const HeadPeer& peer);

 private:
  void answer(HeadPeer& peer, const std::string& key);

  std::map<std::string, std::string> values_;
  HeadConnections& connections_;
  std::multimap<std::string, HeadPeer*> waiting_;
};

}  // namespace tessera::launch

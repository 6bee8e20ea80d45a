// SPDX-License-Identifier: Apache-2.0
// The values that a coordinator keeps for the ranks of its job (FrameType::Set and Get).
#pragma once

#include <map>
#include <string>

#include "tessera/hosts/coordinator_links.h"

namespace tessera::hosts {

/// A request for a value is answered as soon as somebody has set it. Threads: one.
class CoordinatorStore {
 public:
  /// `values`: those that are there from the beginning; `connections` must outlive this object.
  CoordinatorStore(std::map<std::string, std::string> values, CoordinatorLinks& connections);
  /// Throws Error{Comm} for too many values.
  void set(const std::string& key, const std::string& value);
  void get(CoordinatorPeer& peer, const std::string& key);
  /// Forgets the requests of a peer whose connection has ended.
  void forget(const CoordinatorPeer& peer);

 private:
  void answer(CoordinatorPeer& peer, const std::string& key);

  std::map<std::string, std::string> values_;
  CoordinatorLinks& connections_;
  std::multimap<std::string, CoordinatorPeer*> waiting_;
};

}  // namespace tessera::hosts

// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/coordinator_store.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::hosts {
namespace {

constexpr std::size_t kMostKeys = 1U << 20;

}  // namespace

CoordinatorStore::CoordinatorStore(std::map<std::string, std::string> values,
                                   CoordinatorLinks& connections)
    : values_(std::move(values)), connections_(connections) {}

void CoordinatorStore::set(const std::string& key, const std::string& value) {
  TESSERA_REQUIRE(values_.size() < kMostKeys, Comm, "too many values", "");
  values_[key] = value;
  const auto [begin, end] = waiting_.equal_range(key);
  for (auto at = begin; at != end; ++at)
    answer(*at->second, key);
  waiting_.erase(begin, end);
}

void CoordinatorStore::get(CoordinatorPeer& peer, const std::string& key) {
  if (values_.contains(key))
    answer(peer, key);
  else
    waiting_.emplace(key, &peer);
}

void CoordinatorStore::forget(const CoordinatorPeer& peer) {
  std::erase_if(waiting_, [&](const auto& wait) { return wait.second == &peer; });
}

void CoordinatorStore::answer(CoordinatorPeer& peer, const std::string& key) {
  connections_.send(peer, FrameWriter(FrameType::Value).text(key).text(values_[key]).finish());
}

}  // namespace tessera::hosts

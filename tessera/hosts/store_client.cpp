// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/store_client.h"

#include <optional>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/hosts/master_address.h"

namespace tessera::hosts {

StoreClient::StoreClient(const HostPart& part, double timeout_s)
    : timeout_s_(timeout_s),
      client_(part.master,
              part.port,
              part.head_in_rank_0 ? kMasterPorts : 1,
              part.secret,
              now_s() + timeout_s) {}

void StoreClient::set(const std::string& key, std::string_view value) {
  TESSERA_REQUIRE(client_.send(FrameWriter(FrameType::Set).text(key).text(value)),
                  Comm,
                  "the connection to the host of rank 0 was lost while the ranks met",
                  "see its message");
}

const std::string& StoreClient::get(const std::string& key, double timeout_s) {
  const auto known = values_.find(key);
  if (known != values_.end()) return known->second;
  client_.send(FrameWriter(FrameType::Get).text(key));
  const double deadline = now_s() + timeout_s;
  while (const std::optional<Frame> frame = client_.receive(deadline)) {
    if (frame->type != FrameType::Value) continue;
    FrameReader body(*frame);
    const std::string name = body.text();
    values_[name] = body.text();
    if (name == key) return values_[name];
  }
  throw Error(Error::Kind::Comm,
              "another rank did not connect in time, or the host of rank 0 went away",
              "see the messages of the other hosts");
}

}  // namespace tessera::hosts

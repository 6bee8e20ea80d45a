// SPDX-License-Identifier: Apache-2.0
#include "tessera/transports/connect_hosts.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/registry.h"
#include "tessera/comm/transports/authenticated_link.h"
#include "tessera/hosts/store_client.h"

namespace tessera::transports {
namespace {

/// Every host reports how many ranks it has; a host is named by its first rank.
comm::HostLayout exchange_layout(hosts::StoreClient& values,
                                 int rank,
                                 const hosts::HostPart& part) {
  const auto key = [](int first) { return fmt::format("ranks of the host from {}", first); };
  if (rank == part.first_rank) values.set(key(rank), std::to_string(part.local_ranks));
  comm::HostLayout layout{{0}};
  while (layout.first.back() < part.world_size) {
    const int first = layout.first.back();
    const std::string& text = values.get(key(first));
    int count = 0;
    std::from_chars(text.data(), text.data() + text.size(), count);
    layout.first.push_back(first + count);
    TESSERA_REQUIRE(count > 0 && layout.first.back() <= part.world_size,
                    Comm,
                    fmt::format("the host of rank {} has no valid number of ranks", first),
                    "");
  }
  return layout;
}

/// Every rank sends the number that it has drawn to the ranks with which it exchanges messages.
std::map<int, comm::LinkNonce> exchange_nonces(hosts::StoreClient& values,
                                               int rank,
                                               const comm::HostLayout& layout) {
  const auto key = [](int of) { return fmt::format("number of rank {}", of); };
  std::map<int, comm::LinkNonce> nonces;
  const comm::LinkNonce own = hosts::random_bytes();
  values.set(key(rank), std::string_view(reinterpret_cast<const char*>(own.data()), own.size()));
  nonces[rank] = own;
  for (const int peer : comm::partners_of(rank, layout)) {
    const std::string& text = values.get(key(peer));
    comm::LinkNonce& nonce = nonces[peer];
    TESSERA_REQUIRE(text.size() == nonce.size(),
                    Comm,
                    fmt::format("rank {} has sent no number for its messages", peer),
                    "start the same build of tessera on every host");
    std::memcpy(nonce.data(), text.data(), nonce.size());
  }
  return nonces;
}

}  // namespace

HostConnection connect_hosts(int rank,
                             const hosts::HostPart& part,
                             const std::string& link,
                             double timeout_s) {
  hosts::StoreClient values(part, timeout_s);
  comm::HostLayout layout = exchange_layout(values, rank, part);
  const std::map<int, comm::LinkNonce> nonces = exchange_nonces(values, rank, layout);
  std::unique_ptr<comm::HostLink> plain =
      comm::links().get(comm::link_name(link)).connect(rank, part, values, timeout_s);
  return {std::make_unique<comm::AuthenticatedLink>(std::move(plain), rank, part.secret, nonces),
          std::move(layout)};
}

}  // namespace tessera::transports

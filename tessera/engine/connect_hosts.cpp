// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/connect_hosts.h"

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
#include "tessera/comm/transports/authenticated_link.h"
#include "tessera/config/choices.h"
#include "tessera/engine/gloo_link.h"
#include "tessera/engine/module_link.h"
#include "tessera/hosts/store_client.h"

namespace tessera::engine {
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

/// Every rank tells the ranks with which it exchanges messages the number that it has drawn.
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
                    fmt::format("rank {} has told no number for its messages", peer),
                    "start the same build of tessera on every host");
    std::memcpy(nonce.data(), text.data(), nonce.size());
  }
  return nonces;
}

}  // namespace

void check_engine(comm::LinkEngine engine) {
  if (engine == comm::LinkEngine::Mpi) check_module("mpi");
  TESSERA_REQUIRE(engine != comm::LinkEngine::Ucx,
                  Unsupported,
                  "run.transport: \"ucx\" is not built: over TCP, UCX was not faster than gloo "
                  "(docs/hosts.md has the figures)",
                  "set run.transport to \"auto\"");
}

std::string engine_name(comm::LinkEngine engine) {
  return config::name_of(comm::kLinkEngines,
                         engine == comm::LinkEngine::Auto ? comm::LinkEngine::Gloo : engine);
}

HostConnection connect_hosts(int rank,
                             const hosts::HostPart& part,
                             comm::LinkEngine engine,
                             double timeout_s) {
  hosts::StoreClient values(part, timeout_s);
  comm::HostLayout layout = exchange_layout(values, rank, part);
  const std::map<int, comm::LinkNonce> nonces = exchange_nonces(values, rank, layout);
  std::unique_ptr<comm::HostLink> link =
      engine == comm::LinkEngine::Mpi ? open_module_link("mpi", rank, part.world_size)
                                      : connect_gloo(rank, part.world_size, values, timeout_s);
  return {std::make_unique<comm::AuthenticatedLink>(std::move(link), rank, part.secret, nonces),
          std::move(layout)};
}

}  // namespace tessera::engine

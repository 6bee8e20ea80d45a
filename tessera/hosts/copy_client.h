// SPDX-License-Identifier: Apache-2.0
// A connection to a copy server (copy_server.h), and what several servers hold together.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/hosts/copy_server.h"
#include "tessera/hosts/frames.h"

namespace tessera::hosts {

/// The address and port at which the copy server of a host listens.
struct CopyPlace {
  std::string host;  ///< its name, for messages
  std::string address;
  int port = 0;
};

/// A file that a rank writes.
struct CopyFile {
  CopySet set;
  CopySet keep;  ///< the last complete set, which stays until this one is complete
  std::int32_t num_ranks = 1, rank = 0;
  bool is_last = false;  ///< the last file of the rank
  std::string name;
  std::uint64_t bytes = 0;
};

/// Every method throws Error{Comm}, which names the host, if the connection breaks, a transfer
/// makes no progress for 20 s, or the server refuses or lacks what is asked for; the connection is
/// then of no more use. Threads: one.
class CopyClient {
 public:
  CopyClient(CopyPlace place, const Secret& secret, double timeout_s = 5.0);

  [[nodiscard]] const CopyPlace& place() const { return place_; }
  std::vector<CopyListing> list();
  /// Writes one file: begin(), then `file.bytes` bytes in as many parts as needed, then finish().
  void begin(const CopyFile& file);
  void append(std::span<const std::byte> bytes);
  void finish();
  /// Reads bytes of a file, from `at` to its end or as many as `out` has; the latter throws if
  /// there are fewer.
  std::string read_rest(const CopySet& set, const std::string& name, std::uint64_t at = 0);
  void read(const CopySet& set,
            const std::string& name,
            std::uint64_t at,
            std::span<std::byte> out);

 private:
  [[noreturn]] void fail(const std::string& what) const;
  std::uint64_t ask(const CopySet& set,
                    const std::string& name,
                    std::uint64_t at,
                    std::uint64_t bytes);
  void receive(std::byte* to, std::uint64_t bytes);

  CopyPlace place_;
  std::optional<FrameClient> wire_;
};

/// The newest sets that servers hold together.
struct FoundCopies {
  CopySet complete;  ///< the newest set of which every rank's files are there
  CopySet newest;    ///< the newest set of which some are
  int missing = 0;   ///< ranks whose files are missing in `newest`
};
/// `listings`: of all servers.
FoundCopies find_copies(const std::vector<CopyListing>& listings);

}  // namespace tessera::hosts

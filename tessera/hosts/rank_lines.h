// SPDX-License-Identifier: Apache-2.0
// The lines of the ranks of a job on their way between hosts, and which host gets which of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/hosts/coordinator_links.h"
#include "tessera/hosts/frames.h"

namespace tessera::hosts {

/// A line in a frame: rank, state, pid, step, last_seq, waiting_for, life, where.
inline constexpr std::size_t kLineBytes = 128;
/// Maximum number of lines in one frame.
inline constexpr std::size_t kLinesInFrame = 1024;

/// Returns the line of a rank as a frame has it: kLineBytes bytes.
std::string line_bytes(int rank, RankLine& line);
int rank_of_line(std::string_view bytes);
/// 1 + the rank that this one waits for; 0: none.
std::uint32_t awaited_by_line(std::string_view bytes);
/// Writes a line of line_bytes() onto a control page.
void write_line(std::string_view bytes, RankLine& line);
/// Splits the body of a frame into its lines. Throws Error{Comm} if the last one is incomplete.
std::vector<std::string_view> lines_of(const Frame& frame);

/// The time between two frames of lines in one direction: 0.1 s for up to 8 hosts, at most 1 s.
double lines_interval_s(int hosts);

/// The newest line of every rank, in the coordinator. If there are many hosts, each gets only the
/// lines by which it can tell a rank that hangs from one that waits: those of ranks that its own
/// ranks wait for, those of the ranks at the end of such chains, and those of some ranks that wait
/// for its own. Memory: one line for each rank of the job. Threads: one.
class RankLines {
 public:
  using Hosts = std::map<int, CoordinatorPeer*>;  ///< by their first rank

  explicit RankLines(int world) : world_(world) {}
  /// Takes the lines of a host. Throws Error{Comm} for a line of a rank of another host.
  void take(const CoordinatorPeer& from, const Frame& frame);
  /// Sends each host the lines that it should have and that changed since it got them. Cost: one
  /// frame for each host that misses something, and the ranks of the job.
  void share(const Hosts& hosts, CoordinatorLinks& links);
  /// Sends all lines to one host, which is about to report how the job ended.
  void send_all(CoordinatorPeer& to, CoordinatorLinks& links) const;
  void forget(const CoordinatorPeer& peer) { known_.erase(peer.first); }

 private:
  struct Entry {
    std::array<char, kLineBytes> bytes{};
    std::uint64_t version = 0;  // 0: nothing has arrived
    [[nodiscard]] std::string_view text() const { return {bytes.data(), bytes.size()}; }
  };
  [[nodiscard]] int awaited(int rank) const;
  void find_ends();
  [[nodiscard]] std::vector<int> wanted_by(const CoordinatorPeer& host) const;
  void send(CoordinatorPeer& to, const std::vector<int>& ranks, CoordinatorLinks& links) const;

  int world_;
  std::vector<Entry> entries_;  // one for each rank, once the first line has arrived
  std::uint64_t version_ = 0, shared_ = 0;
  std::vector<int> changed_;  // since the last call of share()
  // By rank: the end of the chain of ranks that wait for each other, and some ranks that wait for
  // it. Made anew by each call of share() for many hosts.
  std::vector<int> end_;
  std::vector<std::vector<int>> waiters_;
  // By the first rank of a host: the lines that it should have now, and their versions there.
  std::map<int, std::map<int, std::uint64_t>> known_;
};

}  // namespace tessera::hosts

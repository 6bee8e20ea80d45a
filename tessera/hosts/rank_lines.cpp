// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/rank_lines.h"

#include <algorithm>
#include <cstring>

#include <fmt/core.h>

#include "tessera/base/error.h"
#include "tessera/launch/rank_end.h"

namespace tessera::hosts {
namespace {

/// The words of RankLine::where, which its owner writes while others read it.
constexpr std::size_t kWhereWords = sizeof(RankLine::where) / sizeof(std::uint64_t);
constexpr std::size_t kAwaitedAt = 28;  // in a line
constexpr std::size_t kHeaderBytes = 40;
static_assert(kHeaderBytes + sizeof(RankLine::where) == kLineBytes);
constexpr std::size_t kMostWaiters = 8;  // as many as a message about a rank that hangs names

std::uint64_t* where_words(RankLine& line) {
  return reinterpret_cast<std::uint64_t*>(line.where);
}

template <class T>
T value_at(std::string_view bytes, std::size_t at) {
  T out{};
  std::memcpy(&out, bytes.data() + at, sizeof(out));
  return out;
}

}  // namespace

std::string line_bytes(int rank, RankLine& line) {
  std::string out;
  out.reserve(kLineBytes);
  const auto put = [&](auto value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  put(static_cast<std::int32_t>(rank));
  put(line.state.load());
  put(line.pid.load());
  put(line.step.load());
  put(line.last_seq.load());
  put(line.waiting_for.load());
  put(line.life.load());
  for (std::size_t i = 0; i < kWhereWords; ++i)
    put(__atomic_load_n(where_words(line) + i, __ATOMIC_RELAXED));
  TESSERA_ASSERT(out.size() == kLineBytes);
  return out;
}

int rank_of_line(std::string_view bytes) {
  return value_at<std::int32_t>(bytes, 0);
}

std::uint32_t awaited_by_line(std::string_view bytes) {
  return value_at<std::uint32_t>(bytes, kAwaitedAt);
}

void write_line(std::string_view bytes, RankLine& line) {
  line.state = value_at<std::uint32_t>(bytes, 4);
  line.pid = value_at<std::uint32_t>(bytes, 8);
  line.step = value_at<std::int64_t>(bytes, 12);
  line.last_seq = value_at<std::uint64_t>(bytes, 20);
  line.waiting_for = awaited_by_line(bytes);
  line.life = value_at<std::uint64_t>(bytes, 32);
  std::array<std::uint64_t, kWhereWords> words{};
  std::memcpy(words.data(), bytes.data() + kHeaderBytes, sizeof(words));
  reinterpret_cast<char*>(words.data())[sizeof(words) - 1] = '\0';
  for (std::size_t i = 0; i < kWhereWords; ++i)
    __atomic_store_n(where_words(line) + i, words[i], __ATOMIC_RELAXED);
}

std::vector<std::string_view> lines_of(const Frame& frame) {
  TESSERA_REQUIRE(
      frame.body.size() % kLineBytes == 0, Comm, "a frame of another host is too short", "");
  std::vector<std::string_view> out;
  for (std::size_t at = 0; at < frame.body.size(); at += kLineBytes)
    out.push_back(std::string_view(frame.body).substr(at, kLineBytes));
  return out;
}

double lines_interval_s(int hosts) {
  return std::clamp(0.1 * hosts / 8, 0.1, 1.0);
}

void RankLines::take(const CoordinatorPeer& from, const Frame& frame) {
  const std::vector<std::string_view> lines = lines_of(frame);
  if (entries_.empty()) entries_.resize(static_cast<std::size_t>(world_));
  ++version_;
  for (const std::string_view line : lines) {
    const int rank = rank_of_line(line);
    TESSERA_REQUIRE(
        from.is_host() && rank >= from.first && rank < from.first + from.ranks && rank < world_,
        Comm,
        fmt::format("it sent the line of rank {}, which is not its own", rank),
        "");
    Entry& entry = entries_[static_cast<std::size_t>(rank)];
    if (entry.version <= shared_) changed_.push_back(rank);
    std::memcpy(entry.bytes.data(), line.data(), kLineBytes);
    entry.version = version_;
  }
}

int RankLines::awaited(int rank) const {
  const Entry& entry = entries_[static_cast<std::size_t>(rank)];
  const std::uint32_t of = entry.version == 0 ? 0 : awaited_by_line(entry.text());
  return of == 0 || of > static_cast<std::uint32_t>(world_) ? -1 : static_cast<int>(of) - 1;
}

void RankLines::find_ends() {
  const auto count = static_cast<std::size_t>(world_);
  end_.assign(count, -1);
  waiters_.assign(count, {});
  std::vector<char> on_path(count, 0);
  std::vector<int> path;
  for (int start = 0; start < world_; ++start) {
    path.clear();
    int rank = start;
    while (end_[static_cast<std::size_t>(rank)] < 0) {
      path.push_back(rank);
      on_path[static_cast<std::size_t>(rank)] = 1;
      const int next = awaited(rank);
      // A circle of ranks that wait for each other has no end; any of its ranks stands for it.
      if (next < 0 || on_path[static_cast<std::size_t>(next)] != 0) break;
      rank = next;
    }
    const int known = end_[static_cast<std::size_t>(rank)];
    for (const int one : path) {
      end_[static_cast<std::size_t>(one)] = known < 0 ? rank : known;
      on_path[static_cast<std::size_t>(one)] = 0;
    }
    if (const int next = awaited(start); next >= 0) {
      std::vector<int>& waiters = waiters_[static_cast<std::size_t>(next)];
      if (waiters.size() < kMostWaiters) waiters.push_back(start);
    }
  }
}

std::vector<int> RankLines::wanted_by(const CoordinatorPeer& host) const {
  std::vector<int> out;
  const auto add = [&](int rank) {
    if (rank < host.first || rank >= host.first + host.ranks) out.push_back(rank);
  };
  for (int rank = host.first; rank < std::min(host.first + host.ranks, world_); ++rank) {
    for (const int waiter : waiters_[static_cast<std::size_t>(rank)])
      add(waiter);
    const int next = awaited(rank);
    if (next < 0) continue;
    add(next);
    add(end_[static_cast<std::size_t>(next)]);
  }
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

void RankLines::share(const Hosts& hosts, CoordinatorLinks& links) {
  if (entries_.empty() || version_ == shared_) return;
  const bool all = hosts.size() <= launch::kHostsThatHearAll;
  if (!all) find_ends();
  for (const auto& [first, host] : hosts) {
    std::vector<int> ranks;
    if (all) {
      for (const int rank : changed_) {
        if (rank < first || rank >= first + host->ranks) ranks.push_back(rank);
      }
    } else {
      std::map<int, std::uint64_t> now;
      const std::map<int, std::uint64_t>& before = known_[first];
      for (const int rank : wanted_by(*host)) {
        const std::uint64_t version = entries_[static_cast<std::size_t>(rank)].version;
        const auto found = before.find(rank);
        if (version > (found == before.end() ? 0 : found->second)) ranks.push_back(rank);
        now.emplace(rank, version);
      }
      known_[first] = std::move(now);
    }
    send(*host, ranks, links);
  }
  changed_.clear();
  shared_ = version_;
}

void RankLines::send_all(CoordinatorPeer& to, CoordinatorLinks& links) const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto rank = static_cast<int>(i);
    const bool own = rank >= to.first && rank < to.first + to.ranks;
    if (entries_[i].version > 0 && !own) ranks.push_back(rank);
  }
  send(to, ranks, links);
}

void RankLines::send(CoordinatorPeer& to,
                     const std::vector<int>& ranks,
                     CoordinatorLinks& links) const {
  for (std::size_t at = 0; at < ranks.size(); at += kLinesInFrame) {
    FrameWriter frame(FrameType::Lines);
    for (std::size_t i = at; i < std::min(ranks.size(), at + kLinesInFrame); ++i)
      frame.raw(entries_[static_cast<std::size_t>(ranks[i])].text());
    links.send(to, frame.finish());
  }
}

}  // namespace tessera::hosts

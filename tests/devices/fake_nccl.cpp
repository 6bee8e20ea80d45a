// SPDX-License-Identifier: Apache-2.0
#include "devices/fake_nccl.h"

#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "devices/simulated_gpu.h"

namespace tessera::test {
namespace {

using transports::NcclApi;
using transports::NcclId;

struct Send {
  const void* data = nullptr;
  std::size_t bytes = 0;
};
struct Receive {
  void* data = nullptr;
  std::size_t bytes = 0;
};
/// The messages of a rank in a call: for each peer those to it and from it, in order.
struct Brought {
  std::map<int, std::vector<Send>> sent;
  std::map<int, std::vector<Receive>> received;
};

/// The ranks of a communicator, which meet for every call.
class Ring {
 public:
  explicit Ring(int ranks) : brought_(static_cast<std::size_t>(ranks)) {}
  /// Returns false if the sizes do not match.
  bool meet(int rank, Brought mine) {
    std::unique_lock lock(mutex_);
    const int round = round_;
    brought_[static_cast<std::size_t>(rank)] = std::move(mine);
    if (++arrived_ == static_cast<int>(brought_.size())) {
      matches_ = move_all();
      arrived_ = 0;
      ++round_;
      met_.notify_all();
    } else {
      met_.wait(lock, [&] { return round_ != round; });
    }
    return matches_;
  }

 private:
  bool move_all() {
    bool matches = true;
    const auto ranks = static_cast<int>(brought_.size());
    for (int from = 0; from < ranks; ++from) {
      for (int to = 0; to < ranks; ++to) {
        const auto& sent = brought_[static_cast<std::size_t>(from)].sent[to];
        const auto& received = brought_[static_cast<std::size_t>(to)].received[from];
        matches = matches && sent.size() == received.size();
        for (std::size_t i = 0; i < sent.size() && i < received.size(); ++i) {
          matches = matches && sent[i].bytes == received[i].bytes;
          copy_there(received[i].data, sent[i].data, std::min(sent[i].bytes, received[i].bytes));
        }
      }
    }
    return matches;
  }

  std::mutex mutex_;
  std::condition_variable met_;
  std::vector<Brought> brought_;
  int arrived_ = 0, round_ = 0;
  bool matches_ = true;
};

struct Comm {
  std::shared_ptr<Ring> ring;
  int rank = 0, ranks = 1;
};

constexpr int kSuccess = 0, kInvalidUsage = 5;

std::mutex rings_mutex;
std::map<std::string, std::shared_ptr<Ring>>& rings() {
  static auto* const rings = new std::map<std::string, std::shared_ptr<Ring>>;
  return *rings;
}

/// The calls between group_start() and group_end() of a thread.
struct Grouped {
  int depth = 0;
  Comm* comm = nullptr;
  void* stream = nullptr;
  Brought brought;
  std::vector<Bytes> reads, writes;
};
thread_local Grouped grouped;

int end_of_group(const std::string& what) {
  Grouped mine = std::exchange(grouped, {});
  if (mine.comm == nullptr) return kSuccess;
  on_simulated_stream(mine.stream, what, mine.reads, mine.writes);
  return mine.comm->ring->meet(mine.comm->rank, std::move(mine.brought)) ? kSuccess : kInvalidUsage;
}

int get_version(int* version) {
  *version = 22809;
  return kSuccess;
}
int get_unique_id(NcclId* id) {
  static int next = 0;
  const std::lock_guard lock(rings_mutex);
  *id = {};
  std::snprintf(id->bytes, sizeof(id->bytes), "fake %d", next++);
  return kSuccess;
}
int comm_init_rank(void** comm, int ranks, NcclId id, int rank) {
  const std::lock_guard lock(rings_mutex);
  auto& ring = rings()[id.bytes];
  if (!ring) ring = std::make_shared<Ring>(ranks);
  *comm = new Comm{ring, rank, ranks};
  return kSuccess;
}
int comm_abort(void* comm) {
  delete static_cast<Comm*>(comm);
  return kSuccess;
}
int comm_get_async_error(void* /*comm*/, int* result) {
  *result = kSuccess;
  return kSuccess;
}
int send(const void* data, std::size_t count, int /*type*/, int peer, void* comm, void* stream) {
  grouped.comm = static_cast<Comm*>(comm);
  grouped.stream = stream;
  grouped.brought.sent[peer].push_back({data, count});
  grouped.reads.push_back({data, count});
  return grouped.depth > 0 ? kSuccess : end_of_group("ncclSend");
}
int recv(void* data, std::size_t count, int /*type*/, int peer, void* comm, void* stream) {
  grouped.comm = static_cast<Comm*>(comm);
  grouped.stream = stream;
  grouped.brought.received[peer].push_back({data, count});
  grouped.writes.push_back({data, count});
  return grouped.depth > 0 ? kSuccess : end_of_group("ncclRecv");
}
int group_start() {
  ++grouped.depth;
  return kSuccess;
}
int group_end() {
  return --grouped.depth > 0 ? kSuccess : end_of_group("a group of ncclSend and ncclRecv");
}
int all_gather(const void* in, void* out, std::size_t count, int type, void* comm, void* stream) {
  const auto& of = *static_cast<Comm*>(comm);
  group_start();
  for (int peer = 0; peer < of.ranks; ++peer) {
    send(in, count, type, peer, comm, stream);
    recv(static_cast<std::byte*>(out) + static_cast<std::size_t>(peer) * count,
         count,
         type,
         peer,
         comm,
         stream);
  }
  grouped.depth = 0;
  return end_of_group("ncclAllGather");
}
int broadcast(
    const void* in, void* out, std::size_t count, int type, int root, void* comm, void* stream) {
  const auto& of = *static_cast<Comm*>(comm);
  group_start();
  for (int peer = 0; peer < of.ranks && of.rank == root; ++peer)
    send(in, count, type, peer, comm, stream);
  recv(out, count, type, root, comm, stream);
  grouped.depth = 0;
  return end_of_group("ncclBroadcast");
}
const char* error_string(int result) {
  return result == kSuccess ? "no error" : "invalid usage";
}

}  // namespace

const NcclApi& fake_nccl() {
  static const NcclApi api = {.get_version = get_version,
                              .get_unique_id = get_unique_id,
                              .comm_init_rank = comm_init_rank,
                              .comm_abort = comm_abort,
                              .comm_get_async_error = comm_get_async_error,
                              .all_gather = all_gather,
                              .broadcast = broadcast,
                              .send = send,
                              .recv = recv,
                              .group_start = group_start,
                              .group_end = group_end,
                              .error_string = error_string};
  return api;
}

}  // namespace tessera::test

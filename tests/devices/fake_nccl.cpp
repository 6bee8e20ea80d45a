// SPDX-License-Identifier: Apache-2.0
#include "devices/fake_nccl.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <deque>
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

struct Receive {
  int from = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// The ranks of a communicator and the messages between them that were not received yet.
class Ring {
 public:
  void send(int from, int to, std::vector<std::byte> message) {
    const std::lock_guard lock(mutex_);
    messages_[{from, to}].push_back(std::move(message));
    changed_.notify_all();
  }
  /// Waits for a message. Returns false if the communicator was aborted or the sizes differ.
  bool receive(int to, const Receive& into) {
    std::unique_lock lock(mutex_);
    auto& coming = messages_[{into.from, to}];
    changed_.wait(lock, [&] { return aborted_ || !coming.empty(); });
    if (coming.empty()) return false;
    const std::vector<std::byte> message = std::move(coming.front());
    coming.pop_front();
    lock.unlock();
    if (message.size() != into.bytes) return false;
    if (is_simulated_memory(into.data)) copy_there(into.data, message.data(), into.bytes);
    return true;
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> messages_;
  bool aborted_ = false;
};

struct Comm {
  std::shared_ptr<Ring> ring;
  int rank = 0, ranks = 1;
  std::shared_ptr<std::atomic<int>> failure = std::make_shared<std::atomic<int>>(0);
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
  std::vector<std::pair<int, Bytes>> sent;
  std::vector<Receive> received;
};
thread_local Grouped grouped;

/// What is sent leaves at once. What is received arrives when the stream continues; before, it is
/// 0xff.
int end_of_group(const std::string& what) {
  const Grouped mine = std::exchange(grouped, {});
  if (mine.comm == nullptr) return kSuccess;
  std::vector<Bytes> reads, writes;
  for (const auto& [to, bytes] : mine.sent)
    reads.push_back(bytes);
  for (const Receive& one : mine.received)
    writes.push_back({one.data, one.bytes});
  const auto complete = [of = *mine.comm, received = mine.received] {
    for (const Receive& one : received) {
      if (!of.ring->receive(of.rank, one)) *of.failure = kInvalidUsage;
    }
  };
  later_on_simulated_stream(mine.stream, what, reads, writes, complete);
  for (const auto& [to, bytes] : mine.sent) {
    std::vector<std::byte> message(bytes.bytes);
    copy_there(message.data(), bytes.data, bytes.bytes);
    mine.comm->ring->send(mine.comm->rank, to, std::move(message));
  }
  for (const Receive& one : mine.received) {
    const std::vector<std::byte> none(one.bytes, std::byte{0xff});
    // The rank's own part may be received in place of what it sends.
    if (one.from != mine.comm->rank) copy_there(one.data, none.data(), one.bytes);
  }
  return kSuccess;
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
  if (!ring) ring = std::make_shared<Ring>();
  *comm = new Comm{ring, rank, ranks};
  return kSuccess;
}
int comm_abort(void* comm) {
  auto* const mine = static_cast<Comm*>(comm);
  mine->ring->abort();
  delete mine;
  return kSuccess;
}
int comm_destroy(void* comm) {
  delete static_cast<Comm*>(comm);
  return kSuccess;
}
int comm_get_async_error(void* comm, int* result) {
  *result = *static_cast<Comm*>(comm)->failure;
  return kSuccess;
}
int send(const void* data, std::size_t count, int /*type*/, int peer, void* comm, void* stream) {
  grouped.comm = static_cast<Comm*>(comm);
  grouped.stream = stream;
  grouped.sent.push_back({peer, {data, count}});
  return grouped.depth > 0 ? kSuccess : end_of_group("ncclSend");
}
int recv(void* data, std::size_t count, int /*type*/, int peer, void* comm, void* stream) {
  grouped.comm = static_cast<Comm*>(comm);
  grouped.stream = stream;
  grouped.received.push_back({peer, static_cast<std::byte*>(data), count});
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
                              .comm_destroy = comm_destroy,
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

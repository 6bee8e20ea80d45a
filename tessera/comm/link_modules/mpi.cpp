// SPDX-License-Identifier: Apache-2.0
// Messages between hosts over MPI: the library libtessera_mpi.so (link_module.h). It uses nothing
// of tessera but that header.
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// The old C++ interface of MPI, which its header would declare as well.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>

#include "tessera/comm/transports/link_module.h"

namespace {

using tessera::comm::kLinkModuleVersion;
using tessera::comm::LinkModule;
using tessera::comm::LinkModuleText;

constexpr int kTag = 7;
/// MPI counts bytes as int.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;
/// If more bytes than these are received, the thread polls without a pause: the other side has
/// begun to send them, or will at once. A receiver that waits for the next small message has
/// memory for HostLink::kSmallBytes.
constexpr std::size_t kSmallBytes = 65536;
constexpr std::chrono::microseconds kShortNap{20}, kLongNap{200};
constexpr int kNapsBeforeLong = 500;

void say(LinkModuleText why, const std::string& text) {
  std::snprintf(why.text, why.bytes, "%s", text.c_str());
}

std::string text_of(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(error, text.data(), &length);
  return text.data();
}

/// One message, or a part of a large one.
struct Operation {
  bool sends = false;
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
  bool done = false;
  int error = MPI_SUCCESS;
};

/// Exchanges messages over MPI. One thread of the link makes all calls of MPI: it begins and
/// completes the operations that other threads request. MPI has no descriptor to wait for, so that
/// the thread polls: without a pause while a large transfer is in progress, and with short sleeps
/// otherwise.
class MpiLink {
 public:
  MpiLink(int rank, int world_size) {
    thread_ = std::thread([this, rank, world_size] { run(rank, world_size); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return started_; });
  }
  ~MpiLink() {
    close();
    thread_.join();
  }
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;

  /// Returns the reason why the link cannot be used; empty if it can.
  [[nodiscard]] const std::string& problem() const { return problem_; }

  bool exchange(bool sends, int peer, void* data, std::size_t bytes, LinkModuleText why) {
    auto* at = static_cast<char*>(data);
    do {
      const std::size_t part = std::min(bytes, kMostBytes);
      if (!exchange_part({sends, peer, at, part}, why)) return false;
      at += part;
      bytes -= part;
    } while (bytes > 0);
    return true;
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  struct Active {
    std::shared_ptr<Operation> operation;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  bool exchange_part(const Operation& asked, LinkModuleText why) {
    const auto operation = std::make_shared<Operation>(asked);
    std::unique_lock lock(mutex_);
    if (!closed_) {
      fresh_.push_back(operation);
      changed_.notify_all();
      changed_.wait(lock, [&] { return operation->done || closed_; });
    }
    if (operation->done && operation->error == MPI_SUCCESS) return true;
    say(why, operation->done ? text_of(operation->error) : "the connections are closed");
    return false;
  }

  void run(int rank, int world_size) {
    prctl(PR_SET_NAME, "tessera-mpi");
    prctl(PR_SET_TIMERSLACK, 5000UL);
    std::string problem = start(rank, world_size);
    {
      const std::lock_guard lock(mutex_);
      problem_ = std::move(problem);
      started_ = true;
      changed_.notify_all();
    }
    if (problem_.empty()) serve();
    finish();
  }

  std::string start(int rank, int world_size) {
    int initialized = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialized);
    if (initialized != 0) return "another part of this process has initialized MPI";
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
      return "MPI_Init_thread failed";
    initialized_ = true;
    int own = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &own);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != world_size || own != rank) {
      return "this process is rank " + std::to_string(own) + " of " + std::to_string(size) +
             " for MPI, and rank " + std::to_string(rank) + " of " + std::to_string(world_size) +
             " of the job";
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return "";
  }

  /// Runs the thread that calls MPI: it begins and completes operations until close().
  void serve() {
    int naps = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        if (active_.empty() && fresh_.empty())
          changed_.wait(lock, [this] { return closed_ || !fresh_.empty(); });
        if (closed_) return;
        for (std::shared_ptr<Operation>& operation : fresh_)
          active_.push_back({std::move(operation)});
        if (!fresh_.empty()) naps = 0;
        fresh_.clear();
      }
      if (complete()) {
        naps = 0;
      } else if (is_busy()) {
        sched_yield();
      } else {
        std::this_thread::sleep_for(++naps < kNapsBeforeLong ? kShortNap : kLongNap);
      }
    }
  }

  [[nodiscard]] bool is_busy() const {
    return std::any_of(active_.begin(), active_.end(), [](const Active& active) {
      return active.operation->sends || active.operation->bytes > kSmallBytes;
    });
  }

  static int begin(Active& active) {
    const Operation& what = *active.operation;
    const int bytes = static_cast<int>(what.bytes);
    return what.sends
               ? MPI_Isend(
                     what.data, bytes, MPI_BYTE, what.peer, kTag, MPI_COMM_WORLD, &active.request)
               : MPI_Irecv(
                     what.data, bytes, MPI_BYTE, what.peer, kTag, MPI_COMM_WORLD, &active.request);
  }

  /// Returns whether an operation was completed. Messages of a pair keep the order in which they
  /// were begun.
  bool complete() {
    std::vector<std::pair<std::shared_ptr<Operation>, int>> ended;
    for (Active& active : active_) {
      int error = active.request == MPI_REQUEST_NULL ? begin(active) : MPI_SUCCESS, done = 0;
      // A message that is larger than its memory is an error (MPI_ERR_TRUNCATE).
      if (error == MPI_SUCCESS) error = MPI_Test(&active.request, &done, MPI_STATUS_IGNORE);
      if (error == MPI_SUCCESS && done == 0) continue;
      ended.emplace_back(std::move(active.operation), error);
    }
    if (ended.empty()) return false;
    std::erase_if(active_, [](const Active& active) { return active.operation == nullptr; });
    const std::lock_guard lock(mutex_);
    for (const auto& [operation, error] : ended) {
      operation->error = error;
      operation->done = true;
    }
    changed_.notify_all();
    return true;
  }

  /// MPI_Finalize() waits for all processes, so it is called only if all of them are to end in
  /// order: nothing is under way.
  void finish() {
    if (!initialized_) return;
    const bool orderly = active_.empty() && fresh_.empty() && problem_.empty();
    if (orderly) MPI_Finalize();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Operation>> fresh_;  // asked for, not begun
  std::vector<Active> active_;                     // only its thread uses them
  bool started_ = false, closed_ = false, initialized_ = false;
  std::string problem_;
  std::thread thread_;
};

void* open_link(int rank, int world_size, LinkModuleText why) {
  auto link = std::make_unique<MpiLink>(rank, world_size);
  if (link->problem().empty()) return link.release();
  say(why, link->problem());
  return nullptr;
}

bool send(void* link, int peer, const void* data, std::size_t bytes, LinkModuleText why) {
  return static_cast<MpiLink*>(link)->exchange(true, peer, const_cast<void*>(data), bytes, why);
}

bool receive(void* link, int peer, void* data, std::size_t bytes, LinkModuleText why) {
  return static_cast<MpiLink*>(link)->exchange(false, peer, data, bytes, why);
}

void close_link(void* link) {
  static_cast<MpiLink*>(link)->close();
}

void destroy(void* link) {
  delete static_cast<MpiLink*>(link);
}

constexpr LinkModule kModule = {
    kLinkModuleVersion, "mpi", &open_link, &send, &receive, &close_link, &destroy};

}  // namespace

extern "C" __attribute__((visibility("default"))) const LinkModule* tessera_link_module() {
  return &kModule;
}

// SPDX-License-Identifier: Apache-2.0
// The parts of a tier on a disk: the file of a buffer, the state that it shares with its snapshots,
// and transfers of single blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "tessera/base/files.h"
#include "tessera/memory/tiers/tier.h"

namespace tessera::memory::disk {

/// The file of a buffer: an array of slots of one block each.
class SlotFile {
 public:
  SlotFile(const TierOptions& options, std::string what, std::int64_t slots);
  ~SlotFile() { ::close(fd_); }
  SlotFile(const SlotFile&) = delete;
  SlotFile& operator=(const SlotFile&) = delete;

  [[nodiscard]] std::int64_t block() const { return block_; }
  /// Moves one whole block.
  void read(std::size_t slot, std::span<std::byte> to) const;
  void write(std::size_t slot, std::span<const std::byte> from) const;
  /// Reserves room for slots [first, end).
  void reserve(std::int64_t first, std::int64_t end) const;
  [[noreturn]] void damaged(std::size_t slot) const;
  /// Of transfers that the ring makes: the descriptor, and the error of one.
  [[nodiscard]] int descriptor() const { return fd_; }
  [[noreturn]] void failed(std::size_t slot, bool reads, int code) const;
  /// If the page cache is used, the bytes of the slot need not stay in it.
  void drop_cached(std::size_t slot) const;

 private:
  template <class Byte, class Call>
  void move(std::size_t slot, std::span<Byte> bytes, std::string_view verb, const Call& call) const;
  [[noreturn]] void fail(const std::string& doing, int code) const;

  std::string folder_, what_;
  std::int64_t block_;
  int fd_ = -1;
};

/// The state that a file shares with its snapshots: which slot each has for a block, and the
/// checksum of each slot.
struct Slots {
  Slots(const TierOptions& options, std::string what, std::int64_t blocks)
      : file(options, std::move(what), blocks) {
    const std::vector<std::byte> zeros(static_cast<std::size_t>(options.block_bytes));
    zero_sum = files::xxh3(zeros);
    of_slot.resize(static_cast<std::size_t>(blocks));
  }

  struct Slot {
    int users = 1;         ///< the file, if it has the slot for a block, and snapshots
    bool written = false;  ///< if not, the block is zero
    std::uint64_t checksum = 0;
  };
  SlotFile file;
  std::uint64_t zero_sum = 0;
  std::mutex mutex;  ///< guards the fields below
  std::vector<Slot> of_slot;
  std::vector<std::size_t> free;

  Slot now(std::size_t slot) {
    const std::lock_guard lock(mutex);
    return of_slot[slot];
  }
  /// Reads and verifies a slot.
  void read(std::size_t slot, std::span<std::byte> to) {
    const Slot known = now(slot);
    if (!known.written) {
      std::memset(to.data(), 0, to.size());
      return;
    }
    file.read(slot, to);
    if (files::xxh3(to) != known.checksum) file.damaged(slot);
  }
  void write(std::size_t slot, std::span<const std::byte> from) {
    const std::uint64_t checksum = files::xxh3(from);
    file.write(slot, from);
    wrote(slot, checksum);
  }
  void wrote(std::size_t slot, std::uint64_t checksum) {
    const std::lock_guard lock(mutex);
    of_slot[slot].written = true;
    of_slot[slot].checksum = checksum;
  }
  void drop(std::size_t slot) {
    const std::lock_guard lock(mutex);
    if (--of_slot[slot].users == 0) free.push_back(slot);
  }
};

/// A transfer of one block.
struct Job {
  std::shared_ptr<Slots> slots;
  std::size_t slot = 0;
  std::span<std::byte> to;          ///< of a read
  std::span<const std::byte> from;  ///< of a write
  int waits_for = 0;                ///< jobs that must end before
  std::vector<std::shared_ptr<Job>> then;
  bool ended = false;
  std::exception_ptr error;
  std::uint64_t checksum = 0;  ///< of a write under way in the ring
};
using JobPtr = std::shared_ptr<Job>;

/// Makes transfers with io_uring, at most depth() at a time. Used by one thread.
class Ring {
 public:
  virtual ~Ring() = default;
  [[nodiscard]] virtual int depth() const = 0;
  [[nodiscard]] virtual int under_way() const = 0;
  /// Starts the jobs and returns those that have ended meanwhile, at least one if any is under way;
  /// an error is in its job.
  virtual std::vector<JobPtr> run(std::vector<JobPtr> jobs) = 0;
};
/// Returns nullptr if the program was built without liburing, if the kernel refuses io_uring, or if
/// the environment has TESSERA_DISK_IO=threads.
std::unique_ptr<Ring> make_ring(int depth);

}  // namespace tessera::memory::disk

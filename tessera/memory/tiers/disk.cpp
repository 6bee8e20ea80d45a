// SPDX-License-Identifier: Apache-2.0
// A folder on a disk as a tier. Each buffer is one file without a name, so that no crash leaves it
// behind, and of which all bytes are reserved when it is opened. Blocks have checksums in memory,
// which every read verifies. Transfers go past the page cache where the file system can.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/quiet_thread.h"
#include "tessera/memory/pages.h"
#include "tessera/memory/tiers/disk_jobs.h"
#include "tessera/memory/tiers/tier.h"

namespace tessera::memory {
namespace {

using namespace disk;

class DiskSnapshot final : public ByteSource {
 public:
  DiskSnapshot(std::shared_ptr<Slots> slots, std::vector<std::size_t> of_block)
      : slots_(std::move(slots)), of_block_(std::move(of_block)) {}
  ~DiskSnapshot() override {
    for (const std::size_t slot : of_block_)
      slots_->drop(slot);
  }
  DiskSnapshot(const DiskSnapshot&) = delete;
  DiskSnapshot& operator=(const DiskSnapshot&) = delete;

  [[nodiscard]] std::uint64_t size() const override { return of_block_.size() * block(); }
  void read(std::uint64_t begin, std::span<std::byte> out) const override {
    TESSERA_ASSERT(begin + out.size() <= size());
    while (!out.empty()) {
      const std::size_t index = begin / block(), offset = begin % block();
      const std::size_t take = std::min<std::size_t>(out.size(), block() - offset);
      load(index);
      std::memcpy(out.data(), last_.bytes().data() + offset, take);
      out = out.subspan(take);
      begin += take;
    }
  }

 private:
  [[nodiscard]] std::size_t block() const { return static_cast<std::size_t>(slots_->file.block()); }
  /// Reads a block into `last_`, which readers of neighbouring bytes share.
  void load(std::size_t index) const {
    if (last_.bytes().empty()) last_ = StagingMemory(slots_->file.block());
    if (loaded_ && *loaded_ == index) return;
    loaded_.reset();
    slots_->read(of_block_[index], last_.bytes());
    loaded_ = index;
  }

  std::shared_ptr<Slots> slots_;
  std::vector<std::size_t> of_block_;
  mutable StagingMemory last_;
  mutable std::optional<std::size_t> loaded_;
};

/// Makes the transfers of a tier: threads with pread and pwrite, or one thread with io_uring.
class Workers {
 public:
  explicit Workers(int transfers) : ring_(make_ring(transfers)) {
    for (int i = 0; i < (ring_ != nullptr ? 1 : transfers); ++i)
      threads_.push_back(quiet_thread([this] { ring_ != nullptr ? work_with_ring() : work(); }));
  }
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_)
      thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Makes the job after all jobs of `before` that have not ended.
  void add(const JobPtr& job, std::span<const JobPtr> before) {
    {
      const std::lock_guard lock(mutex_);
      for (const JobPtr& other : before) {
        if (other == nullptr || other->ended) continue;
        other->then.push_back(job);
        ++job->waits_for;
      }
      if (job->waits_for > 0) return;
      ready_.push_back(job);
    }
    changed_.notify_all();
  }
  void wait(const Job& job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job.ended; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !ready_.empty(); });
      if (ready_.empty()) return;
      const JobPtr job = std::move(ready_.front());
      ready_.pop_front();
      lock.unlock();
      try {
        if (job->from.empty()) {
          job->slots->read(job->slot, job->to);
        } else {
          job->slots->write(job->slot, job->from);
        }
      } catch (...) {
        job->error = std::current_exception();
      }
      lock.lock();
      end(*job);
    }
  }
  /// Fills the ring with jobs, and waits for one of them at a time.
  void work_with_ring() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (ring_->under_way() == 0) changed_.wait(lock, [&] { return stop_ || !ready_.empty(); });
      if (ring_->under_way() == 0 && ready_.empty()) return;
      std::vector<JobPtr> taken;
      while (!ready_.empty() &&
             ring_->under_way() + static_cast<int>(taken.size()) < ring_->depth()) {
        taken.push_back(std::move(ready_.front()));
        ready_.pop_front();
      }
      lock.unlock();
      const std::vector<JobPtr> ended = ring_->run(std::move(taken));
      lock.lock();
      for (const JobPtr& job : ended)
        end(*job);
    }
  }
  /// Called with the lock.
  void end(Job& job) {
    job.ended = true;
    for (JobPtr& next : job.then) {
      if (--next->waits_for == 0) ready_.push_back(std::move(next));
    }
    job.then.clear();
    changed_.notify_all();
  }

  std::unique_ptr<Ring> ring_;  ///< nullptr: threads with pread and pwrite
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<JobPtr> ready_;
  std::vector<std::thread> threads_;
  bool stop_ = false;
};

class DiskFile final : public TierFile {
 public:
  DiskFile(std::shared_ptr<Slots> slots, Workers& workers, TierUse& use)
      : slots_(std::move(slots)), workers_(workers), use_(use) {
    for (std::size_t slot = 0; slot < slots_->of_slot.size(); ++slot)
      of_block_.push_back(slot);
    jobs_of_slot_.resize(of_block_.size());
  }
  ~DiskFile() override {
    for (const auto& jobs : pending_) {
      for (const JobPtr& job : jobs)
        workers_.wait(*job);
    }
    for (const std::size_t slot : of_block_)
      slots_->drop(slot);
  }
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  [[nodiscard]] std::int64_t size() const override {
    return std::ssize(of_block_) * slots_->file.block();
  }
  Ticket read(std::int64_t at, std::span<std::byte> to) override;
  Ticket write(std::int64_t at, std::span<const std::byte> from) override;
  void wait(Ticket ticket) override;
  std::shared_ptr<const ByteSource> snapshot() override;

 private:
  /// The last jobs of a slot: one that writes, and those that read after it.
  struct JobsOfSlot {
    JobPtr writes;
    std::vector<JobPtr> reads;
  };
  [[nodiscard]] std::size_t first_block(std::int64_t at, std::size_t bytes) const;
  /// Lets the block have a slot that no snapshot has.
  void make_own(std::size_t block);

  std::shared_ptr<Slots> slots_;
  Workers& workers_;
  TierUse& use_;
  std::vector<std::size_t> of_block_;
  std::vector<JobsOfSlot> jobs_of_slot_;
  std::deque<std::vector<JobPtr>> pending_;  ///< by ticket, from done_ + 1 on
  std::uint64_t done_ = 0;
  std::exception_ptr error_;  ///< of the first transfer that failed
};

std::size_t DiskFile::first_block(std::int64_t at, std::size_t bytes) const {
  const std::int64_t block = slots_->file.block();
  TESSERA_ASSERT(at % block == 0 && bytes % static_cast<std::size_t>(block) == 0);
  TESSERA_ASSERT(at + static_cast<std::int64_t>(bytes) <= size());
  return static_cast<std::size_t>(at / block);
}

Ticket DiskFile::read(std::int64_t at, std::span<std::byte> to) {
  const auto block = static_cast<std::size_t>(slots_->file.block());
  std::vector<JobPtr> jobs;
  for (std::size_t b = first_block(at, to.size()); !to.empty(); ++b, to = to.subspan(block)) {
    const auto job = std::make_shared<Job>();
    job->slots = slots_;
    job->slot = of_block_[b];
    job->to = to.first(block);
    JobsOfSlot& others = jobs_of_slot_[job->slot];
    workers_.add(job, {&others.writes, 1});
    std::erase_if(others.reads, [](const JobPtr& other) { return other.use_count() == 1; });
    others.reads.push_back(job);
    jobs.push_back(job);
    use_.read_bytes += slots_->file.block();
  }
  pending_.push_back(std::move(jobs));
  return {done_ + pending_.size()};
}

void DiskFile::make_own(std::size_t b) {
  const std::size_t shared = of_block_[b];
  {
    const std::lock_guard lock(slots_->mutex);
    if (slots_->of_slot[shared].users == 1) return;
    if (slots_->free.empty()) {
      const auto end = static_cast<std::int64_t>(slots_->of_slot.size());
      slots_->file.reserve(end, end + 1);
      slots_->of_slot.emplace_back();
      of_block_[b] = static_cast<std::size_t>(end);
    } else {
      of_block_[b] = slots_->free.back();
      slots_->free.pop_back();
      // Reads of its old bytes may still wait; the write that follows changes the rest.
      slots_->of_slot[of_block_[b]].users = 1;
    }
  }
  slots_->drop(shared);
  jobs_of_slot_.resize(std::max(jobs_of_slot_.size(), of_block_[b] + 1));
}

Ticket DiskFile::write(std::int64_t at, std::span<const std::byte> from) {
  const auto block = static_cast<std::size_t>(slots_->file.block());
  std::vector<JobPtr> jobs;
  for (std::size_t b = first_block(at, from.size()); !from.empty();
       ++b, from = from.subspan(block)) {
    make_own(b);
    const auto job = std::make_shared<Job>();
    job->slots = slots_;
    job->slot = of_block_[b];
    job->from = from.first(block);
    JobsOfSlot& others = jobs_of_slot_[job->slot];
    std::vector<JobPtr> before = std::move(others.reads);
    before.push_back(std::move(others.writes));
    workers_.add(job, before);
    others = {.writes = job};
    jobs.push_back(job);
    use_.written_bytes += slots_->file.block();
  }
  pending_.push_back(std::move(jobs));
  return {done_ + pending_.size()};
}

void DiskFile::wait(Ticket ticket) {
  const auto begin = std::chrono::steady_clock::now();
  for (; done_ < ticket.id && !pending_.empty(); ++done_, pending_.pop_front()) {
    for (const JobPtr& job : pending_.front()) {
      workers_.wait(*job);
      if (!error_ && job->error) error_ = job->error;
    }
  }
  use_.waited_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (error_) std::rethrow_exception(error_);
}

std::shared_ptr<const ByteSource> DiskFile::snapshot() {
  wait({done_ + pending_.size()});
  {
    const std::lock_guard lock(slots_->mutex);
    for (const std::size_t slot : of_block_)
      ++slots_->of_slot[slot].users;
  }
  return std::make_shared<DiskSnapshot>(slots_, of_block_);
}

class DiskTier final : public Tier {
 public:
  explicit DiskTier(const TierOptions& options) : options_(options), workers_(options.transfers) {
    TESSERA_ASSERT(options.transfers > 0 && options.transfers <= kMostTransfers);
    TESSERA_ASSERT(block() > 0 && block() % static_cast<std::int64_t>(kPageBytes) == 0);
  }
  [[nodiscard]] std::string_view name() const override { return "disk"; }
  [[nodiscard]] std::int64_t block() const override { return options_.block_bytes; }
  std::unique_ptr<TierFile> open(std::string what, std::int64_t bytes) override {
    TESSERA_ASSERT(bytes % block() == 0);
    return std::make_unique<DiskFile>(
        std::make_shared<Slots>(options_, std::move(what), bytes / block()), workers_, use_);
  }
  [[nodiscard]] TierUse use() const override { return use_; }

 private:
  TierOptions options_;
  TierUse use_;
  Workers workers_;
};

TESSERA_TIER("disk", DiskTier);

}  // namespace
}  // namespace tessera::memory

// SPDX-License-Identifier: Apache-2.0
// Transfers with io_uring, through liburing where the build has it. Source: Axboe 2019, "Efficient
// IO with io_uring".
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/memory/tiers/disk_jobs.h"

#if defined(TESSERA_IO_URING)
#include <liburing.h>
#endif

namespace tessera::memory::disk {

#if defined(TESSERA_IO_URING)
namespace {

class UringRing final : public Ring {
 public:
  explicit UringRing(int depth)
      : jobs_(static_cast<std::size_t>(depth)),
        open_(::io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0) == 0) {}
  ~UringRing() override {
    if (open_) ::io_uring_queue_exit(&ring_);
  }
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  [[nodiscard]] bool is_open() const { return open_; }
  [[nodiscard]] int depth() const override { return static_cast<int>(jobs_.size()); }
  [[nodiscard]] int under_way() const override { return under_way_; }

  std::vector<JobPtr> run(std::vector<JobPtr> jobs) override {
    std::vector<JobPtr> ended;
    for (JobPtr& job : jobs) {
      // Entries that the kernel never took still fill the ring.
      if (broken_ != 0) finish(*job, broken_);
      if (broken_ != 0 || !start(job)) ended.push_back(std::move(job));
    }
    if (broken_ != 0) return ended;
    const bool waits = ended.empty() && under_way_ > 0;
    const int submitted = ::io_uring_submit_and_wait(&ring_, waits ? 1 : 0);
    const bool stays =
        submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY;
    if (stays) {  // the kernel takes nothing any more: every transfer has failed
      broken_ = submitted;
      for (JobPtr& job : jobs_) {
        if (job == nullptr) continue;
        finish(*job, submitted);
        ended.push_back(std::exchange(job, nullptr));
      }
      under_way_ = 0;
      return ended;
    }
    ::io_uring_cqe* done = nullptr;
    while (under_way_ > 0 && ::io_uring_peek_cqe(&ring_, &done) == 0) {
      JobPtr job = std::exchange(*static_cast<JobPtr*>(::io_uring_cqe_get_data(done)), nullptr);
      const int moved = done->res;
      ::io_uring_cqe_seen(&ring_, done);
      --under_way_;
      finish(*job, moved);
      ended.push_back(std::move(job));
    }
    return ended;
  }

 private:
  /// Returns false if nothing is to be moved: a block that was never written is zero.
  bool start(const JobPtr& job) {
    const bool reads = job->from.empty();
    if (reads && !job->slots->now(job->slot).written) {
      std::memset(job->to.data(), 0, job->to.size());
      return false;
    }
    ::io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    const std::uint64_t at = job->slot * static_cast<std::uint64_t>(job->slots->file.block());
    const int file = job->slots->file.descriptor();
    if (reads) {
      ::io_uring_prep_read(entry, file, job->to.data(), static_cast<unsigned>(job->to.size()), at);
    } else {
      job->checksum = files::xxh3(job->from);
      ::io_uring_prep_write(
          entry, file, job->from.data(), static_cast<unsigned>(job->from.size()), at);
    }
    JobPtr& place = *std::find(jobs_.begin(), jobs_.end(), nullptr);
    place = job;
    ::io_uring_sqe_set_data(entry, &place);
    ++under_way_;
    return true;
  }

  static void finish(Job& job, int moved) {
    const bool reads = job.from.empty();
    const std::size_t all = reads ? job.to.size() : job.from.size();
    try {
      const bool again = moved == -EINTR || moved == -EAGAIN ||
                         (moved > 0 && static_cast<std::size_t>(moved) < all);
      if (again) {
        // Rare, so that the whole block is moved once more, and waited for.
        reads ? job.slots->read(job.slot, job.to) : job.slots->write(job.slot, job.from);
        return;
      }
      if (moved <= 0) job.slots->file.failed(job.slot, reads, moved < 0 ? -moved : EIO);
      job.slots->file.drop_cached(job.slot);
      if (!reads) return job.slots->wrote(job.slot, job.checksum);
      if (files::xxh3(job.to) != job.slots->now(job.slot).checksum)
        job.slots->file.damaged(job.slot);
    } catch (...) {
      job.error = std::current_exception();
    }
  }

  std::vector<JobPtr> jobs_;  ///< [depth]: those under way, and nullptr
  ::io_uring ring_{};
  bool open_;
  int under_way_ = 0;
  int broken_ = 0;  ///< the error with which the kernel refuses all transfers, negative
};

}  // namespace
#endif

std::unique_ptr<Ring> make_ring([[maybe_unused]] int depth) {
#if defined(TESSERA_IO_URING)
  const char* const wish = std::getenv("TESSERA_DISK_IO");
  if (wish != nullptr && std::string_view(wish) == "threads") return nullptr;
  auto ring = std::make_unique<UringRing>(depth);
  if (ring->is_open()) return ring;
#endif
  return nullptr;
}

}  // namespace tessera::memory::disk

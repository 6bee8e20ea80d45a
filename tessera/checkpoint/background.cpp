// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/background.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <signal.h>

#include "tessera/base/clock.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/consensus.h"

namespace tessera::checkpoint {
namespace {

/// Blocks signals: those sent to the process are for the training thread, and a new thread inherits
/// the mask of its creator.
class NoRequests {
 public:
  NoRequests() {
    sigset_t requests;
    sigemptyset(&requests);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2})
      sigaddset(&requests, signal);
    pthread_sigmask(SIG_BLOCK, &requests, &before_);
  }
  ~NoRequests() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoRequests(const NoRequests&) = delete;
  NoRequests& operator=(const NoRequests&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

void Worker::start(std::function<void()> work) {
  wait();
  failure_.reset();
  done_.store(false, std::memory_order_relaxed);
  try {
    const NoRequests quiet;
    thread_ = std::thread([this, work = std::move(work)] {
      failure_ = caught(work);
      done_.store(true, std::memory_order_release);
    });
  } catch (const std::system_error& error) {
    failure_ =
        Error(Error::Kind::Io,
              fmt::format("cannot start the thread that saves checkpoints: {}", error.what()),
              "raise the limit on processes (ulimit -u), or set checkpoint.async false");
    done_.store(true, std::memory_order_relaxed);
  }
}

const std::optional<Error>& Worker::wait() {
  if (thread_.joinable()) thread_.join();
  return failure_;
}

BackgroundSave::BackgroundSave(Storage& storage,
                               const std::filesystem::path& root,
                               Meta meta,
                               std::vector<PieceBytes> pieces,
                               std::shared_ptr<const void> memory,
                               Ranks ranks,
                               std::function<void()> then)
    : BackgroundSave(std::make_unique<Saver>(storage, root, std::move(meta), pieces, ranks),
                     pieces,
                     std::move(memory),
                     ranks,
                     std::move(then)) {}

BackgroundSave::BackgroundSave(std::unique_ptr<Saver> saver,
                               const std::vector<PieceBytes>& pieces,
                               std::shared_ptr<const void> memory,
                               Ranks ranks,
                               std::function<void()> then)
    : live_(pieces),
      saver_(std::move(saver)),
      memory_(std::move(memory)),
      ranks_(std::move(ranks)),
      then_(std::move(then)) {
  const auto phase = [&](void (Saver::*work)()) {
    run_together(
        ranks_,
        [&] {
          if (ranks_.is_leader()) ((*saver_).*work)();
        },
        [&] { saver_->discard(); });
  };
  if (ranks_.nodes > 1) phase(&Saver::clear);
  phase(&Saver::prepare);
  worker_.start([this] { saver_->write_shard(&stop_, &live_); });
}

BackgroundSave::~BackgroundSave() {
  stop_ = true;
  worker_.wait();
}

double BackgroundSave::before_change(const CopyOut& copy) {
  if (phase_ != Phase::Writing || memory_ == nullptr) return 0.0;
  const double start = now_s();
  try {
    if (worker_.busy()) live_.move_out(copy);
  } catch (const std::exception& error) {
    log::info(fmt::format("training waits for the disk, because a checkpoint cannot be copied: {}",
                          error.what()));
    worker_.wait();
  }
  memory_.reset();
  return now_s() - start;
}

BackgroundSave::Progress BackgroundSave::progress() {
  if (worker_.busy()) return {.busy = true};
  const bool failed = worker_.wait().has_value();
  if (phase_ == Phase::Writing) release_memory();
  return {.failed = failed};
}

void BackgroundSave::advance(Progress anywhere) {
  if (settled_ || anywhere.busy) return;
  if (anywhere.failed) {
    settled_ = true;  // the rest is to report the failure, which finish() does
  } else if (phase_ == Phase::Writing) {
    publish(0);
  } else if (publishing_ + 1 < saver_->phases()) {
    publish(publishing_ + 1);
  } else {
    phase_ = Phase::Done;
    settled_ = true;
  }
}

BackgroundSave::Outcome BackgroundSave::finish() {
  if (phase_ == Phase::Writing) {
    join_phase();
    publish(0);
  }
  while (phase_ == Phase::Publishing) {
    join_phase();
    if (publishing_ + 1 == saver_->phases()) break;
    publish(publishing_ + 1);
  }
  phase_ = Phase::Done;
  settled_ = true;
  return {saver_->folder(), then_failed_};
}

/// Releases what was written once the worker has ended.
void BackgroundSave::release_memory() {
  live_.release_copies();
  memory_.reset();
}

void BackgroundSave::join_phase() {
  run_together(
      ranks_,
      [&] {
        if (const auto& failure = worker_.wait()) throw Error(*failure);
      },
      [&] { saver_->discard(); });
}

void BackgroundSave::publish(int phase) {
  worker_.wait();
  release_memory();
  phase_ = Phase::Publishing;
  publishing_ = phase;
  if (!ranks_.is_leader()) return;
  worker_.start([this, phase] {
    saver_->publish(phase);
    if (then_ && phase + 1 == saver_->phases()) then_failed_ = caught(then_);
  });
}

}  // namespace tessera::checkpoint

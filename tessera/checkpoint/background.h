// SPDX-License-Identifier: Apache-2.0
// Background saves: a worker thread writes and syncs while training continues, and the ranks agree
// without extra waits.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/saver.h"

namespace tessera::checkpoint {

/// Runs one piece of work at a time on a thread of its own.
class Worker {
 public:
  ~Worker() { wait(); }
  /// Starts work; must not be called while busy. If the thread cannot be created, that is the
  /// failure of the work.
  void start(std::function<void()> work);
  [[nodiscard]] bool busy() const { return !done_.load(std::memory_order_acquire); }
  /// Waits for the end of the work and returns what it threw.
  const std::optional<Error>& wait();

 private:
  std::thread thread_;
  std::atomic<bool> done_{true};
  std::optional<Error> failure_;
};

/// One save in progress on one rank. Writes the same bytes as save(), in phases; each begins only
/// once every rank is known to have finished the previous one: all ranks write, then the leaders
/// publish. For this, each rank adds its progress() to a reduction that it makes anyway (such as
/// once per step) and passes the result to advance(). Before publication nothing has a name that
/// list() finds; a process that ends earlier leaves only a temporary folder.
///
/// Threads: those of the rank. The worker makes no collective and does not use libtorch.
class BackgroundSave {
 public:
  /// The state of a rank's part of the current phase.
  struct Progress {
    bool busy = false, failed = false;
  };
  struct Outcome {
    std::filesystem::path folder;
    std::optional<Error> then;  ///< what `then` threw; on the leaders only
  };

  /// Collective. The pieces are in `memory`, which is released on the rank's thread once they are
  /// written or copied; call before_change() before they change. `then` runs on the workers of the
  /// leaders after the publication (such as pruning). Every rank throws the same Error{Io} if the
  /// temporary folder cannot be created.
  BackgroundSave(Storage& storage,
                 const std::filesystem::path& root,
                 Meta meta,
                 std::vector<PieceBytes> pieces,
                 std::shared_ptr<const void> memory,
                 Ranks ranks,
                 std::function<void()> then = {});
  /// The same with another way to write the pieces, which `saver` has as well.
  BackgroundSave(std::unique_ptr<Saver> saver,
                 const std::vector<PieceBytes>& pieces,
                 std::shared_ptr<const void> memory,
                 Ranks ranks,
                 std::function<void()> then = {});
  /// Cancels what is not being published yet, and waits for the worker.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Must be called, and must return, before the pieces change. Copies what is not written yet; if
  /// there is no memory for the copy, waits for the disk. Returns the seconds it took.
  double before_change(const CopyOut& copy);
  /// Returns the state of this rank. Never waits.
  [[nodiscard]] Progress progress();
  /// `anywhere`: whether any rank is busy or failed; the same on all ranks. Never waits for another
  /// rank or for the disk.
  void advance(Progress anywhere);
  /// Returns whether finish() would not wait for any disk; the same on all ranks.
  [[nodiscard]] bool settled() const { return settled_; }
  /// Collective: waits until the checkpoint is published. On failure the previous checkpoints are
  /// unchanged, the temporary folder is removed and all ranks throw the same error, as save() does.
  Outcome finish();

 private:
  enum class Phase { Writing, Publishing, Done };
  void release_memory();
  void join_phase();
  void publish(int phase);

  LiveBytes live_;
  std::unique_ptr<Saver> saver_;
  std::shared_ptr<const void> memory_;
  Ranks ranks_;
  std::function<void()> then_;
  std::optional<Error> then_failed_;
  Phase phase_ = Phase::Writing;
  int publishing_ = 0;  ///< index of the saver's phase
  bool settled_ = false;
  std::atomic<bool> stop_{false};
  Worker worker_;  ///< last, because it reads the other members
};

}  // namespace tessera::checkpoint

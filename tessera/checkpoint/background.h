// SPDX-License-Identifier: Apache-2.0
// A save that does not stop what it saves: a thread of its own writes and syncs, and ranks agree in
// passing.
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

/// Work on a thread of its own, one after the other.
class Worker {
 public:
  ~Worker() { wait(); }
  /// Not while it is busy. Where no thread can be had, that is the work's failure.
  void start(std::function<void()> work);
  [[nodiscard]] bool busy() const { return !done_.load(std::memory_order_acquire); }
  /// Waits for the end of the work; what it threw.
  const std::optional<Error>& wait();

 private:
  std::thread thread_;
  std::atomic<bool> done_{true};
  std::optional<Error> failure_;
};

/// One save under way on one rank. Writes the same bytes as save(), in phases that begin only once
/// every rank is known to have ended the one before: all ranks write, then those that lead publish.
/// To know it, each rank adds its standing() to a reduction that it makes anyhow (once a step, say)
/// and gives the result to advance(). Until the publication nothing has a name that list() finds; a
/// process that ends before it leaves only a temporary folder.
///
/// Threads: the rank's own. Its worker makes no collective and touches no libtorch.
class BackgroundSave {
 public:
  /// Whether a rank's part of the phase is still under way, or failed.
  struct Standing {
    bool busy = false, failed = false;
  };
  struct Outcome {
    std::filesystem::path folder;
    std::optional<Error> then;  ///< what `then` threw; on the ranks that lead
  };

  /// Collective. The pieces lie in `memory`, which is let go on the rank's thread once they are
  /// written or copied; before they change say so to before_change(). `then` runs on the workers of
  /// the ranks that lead, after the publication (pruning, say). Every rank throws the same
  /// Error{Io} where the temporary folder cannot be made.
  BackgroundSave(Storage& storage,
                 const std::filesystem::path& root,
                 Meta meta,
                 std::vector<PieceBytes> pieces,
                 std::shared_ptr<const void> memory,
                 Ranks ranks,
                 std::function<void()> then = {});
  /// Gives up what is not being published yet, and waits for the worker.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Until it returned the pieces must be as they were. Copies what is not written yet; where that
  /// has no memory it waits for the disk. Returns the seconds that it took.
  double before_change(const CopyOut& copy);
  /// Never waits.
  [[nodiscard]] Standing standing();
  /// `anywhere`: whether any rank said so, the same on all. Never waits for another rank or for the
  /// disk.
  void advance(Standing anywhere);
  /// Whether finish() would not wait for any disk; the same on all ranks.
  [[nodiscard]] bool settled() const { return settled_; }
  /// Collective: waits until the checkpoint stands. On failure nothing of the previous checkpoints
  /// is touched, the temporary folder is removed and all ranks throw the same error, as save()
  /// does.
  Outcome finish();

 private:
  enum class Phase { Writing, Publishing, Done };
  void let_go();
  void join_phase();
  void publish(int phase);

  LiveBytes live_;
  Saver saver_;
  std::shared_ptr<const void> memory_;
  Ranks ranks_;
  std::function<void()> then_;
  std::optional<Error> then_failed_;
  Phase phase_ = Phase::Writing;
  int publishing_ = 0;  ///< which of the saver's phases
  bool settled_ = false;
  std::atomic<bool> stop_{false};
  Worker worker_;  ///< last: it reads the others
};

}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Writes the checkpoints of a training on one rank, at once or while the training continues.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/background.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/peer_copies.h"
#include "tessera/comm/world.h"
#include "tessera/engine/experience.h"
#include "tessera/engine/train_state.h"

namespace tessera::engine {

/// Used only on the rank's own thread. All methods are collective, except saving(), copying(),
/// last_copy(), ranks() and propose().
class Saver {
 public:
  /// The arguments must outlive it; `experience` may be nullptr. `by_host`:
  /// checkpoint.use_node_local_storage, each host saves into a folder of its own. `meta` returns
  /// what a checkpoint says of the training besides its pieces.
  Saver(bool by_host,
        comm::World& world,
        TrainState& state,
        Experience* experience,
        std::function<checkpoint::Meta()> meta);

  /// Writes a checkpoint under `root`. If it cannot be written, every rank throws the same
  /// Error{Io}.
  std::filesystem::path save(const std::filesystem::path& root);
  /// Begins to write a checkpoint under `root` and returns. A thread writes this rank's pieces from
  /// their own memory, the next update copies pieces that it changes before they are written, and
  /// the ranks agree on the end within the reductions of later steps, so that no step waits for a
  /// disk. `then` runs on the threads of the leading ranks after the checkpoint is published. Only
  /// one save at a time. If it cannot be begun, every rank throws the same Error{Io}.
  void save_in_background(const std::filesystem::path& root, std::function<void()> then = {});
  /// Returns whether save_in_background() has begun a checkpoint and finish() was not called yet.
  [[nodiscard]] bool saving() const { return background_ != nullptr; }
  /// True if finish() would not wait for a disk; the same on all ranks. Call it only while
  /// saving().
  [[nodiscard]] bool settled() const;
  /// Waits for the checkpoint that is being written. If it could not be written, every rank throws
  /// the same Error{Io}. Call it only while saving().
  checkpoint::BackgroundSave::Outcome finish();

  /// Begins to copy what a checkpoint would contain to the copy servers of `target`, in the same
  /// way. A save that is requested meanwhile waits for the copy.
  void copy_in_background(checkpoint::CopyTarget target);
  /// Returns true if the save in progress is such a copy and not a checkpoint.
  [[nodiscard]] bool copying() const { return saving() && copied_.has_value(); }
  /// Waits for the copy that is being written. Call it only while copying().
  void finish_copy();
  /// Returns the last complete copy; its exists() is false if there is none.
  [[nodiscard]] const hosts::CopySet& last_copy() const { return last_copy_; }
  void set_last_copy(const hosts::CopySet& set) { last_copy_ = set; }
  /// Returns why the last copy that was finished failed, the same on every rank, and forgets it.
  std::optional<Error> take_copy_failure() { return std::exchange(copy_failure_, std::nullopt); }

  /// Copies what a background save may still be reading before the training changes it. Returns the
  /// seconds that this took.
  double before_change();
  /// Proposes to save; the next step's report says on every rank whether any rank proposed it.
  void propose(bool mine) { proposed_ = mine; }
  /// The numbers that the ranks add up within the collectives of a step, so that they agree on the
  /// save in progress: to_sum() of this rank, whose sums all ranks give to advance(). advance()
  /// returns whether any rank proposed to save.
  [[nodiscard]] std::vector<double> to_sum() const;
  bool advance(std::span<const double> sums);

  /// The ranks that take part in a save, grouped by host if checkpoint.use_node_local_storage is
  /// set.
  checkpoint::Ranks ranks();

 private:
  /// Returns this rank's part of a checkpoint, valid until release_pieces().
  std::vector<checkpoint::PieceBytes> pieces();
  void release_pieces();

  bool by_host_;
  comm::World& world_;
  TrainState& state_;
  Experience* experience_;
  std::function<checkpoint::Meta()> meta_;
  bool proposed_ = false;
  std::optional<hosts::CopySet> copied_;  ///< what background_ copies; absent: it is a save
  hosts::CopySet last_copy_;
  std::optional<Error> copy_failure_;
  /// Last member, so that its thread ends first.
  std::unique_ptr<checkpoint::BackgroundSave> background_;
};

}  // namespace tessera::engine

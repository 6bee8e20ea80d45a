// SPDX-License-Identifier: Apache-2.0
// The phases of a save on one rank. Every phase only accesses the disk: no collective, no libtorch,
// on the thread that calls it. The caller ensures that all ranks have finished a phase before any
// begins the next.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/live_bytes.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

/// One save on one rank. Each method throws Error{Io} if the disk fails. A derived class may put
/// the shards elsewhere (peer_copies.h).
class Saver {
 public:
  /// Collective: the ranks agree on the temporary folder. write_shard() reads the memory of
  /// `pieces`.
  Saver(Storage& storage,
        std::filesystem::path root,
        Meta meta,
        std::vector<PieceBytes> pieces,
        const Ranks& ranks);
  virtual ~Saver() = default;
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// With several nodes, called first by the leaders: removes folders left by ended processes,
  /// before any leader creates a folder that another could mistake for one.
  virtual void clear();
  /// First phase, called by the leaders: creates the temporary folder.
  virtual void prepare();
  /// Second phase, called by every rank: writes its shard and the manifest of it, synced. Stops
  /// between two writes, with an Error{Io}, once `stop` is true. `live`: how to read pieces that
  /// are in use.
  virtual void write_shard(const std::atomic<bool>* stop = nullptr, LiveBytes* live = nullptr);
  /// Third phase, called by the leaders for each `phase` of phases(): proves that the pieces are
  /// complete and renames the folder. With several nodes each knows only its own pieces: it writes
  /// the manifest of its part, then renames the part, and once all have done so removes what it
  /// replaced, which does not fail.
  virtual void publish(int phase = 0);
  [[nodiscard]] virtual int phases() const { return nodes_ == 1 ? 1 : 3; }
  /// Called by the leaders after a failure: removes the temporary folder, and a node's part that
  /// has already been renamed.
  virtual void discard() const;

  [[nodiscard]] const std::filesystem::path& folder() const { return final_; }

 protected:
  /// Constructs a saver whose shards are written to `folder` and never published. Not collective.
  Saver(Storage& storage,
        std::filesystem::path folder,
        Meta meta,
        std::vector<PieceBytes> pieces,
        int rank,
        int size);
  void write_text(const std::filesystem::path& path, const std::string& text);
  [[nodiscard]] const Meta& meta() const { return meta_; }

 private:
  struct Entry;
  using ByEntry = std::map<std::string, std::pair<const Entry*, StoredPiece*>>;
  static std::vector<Entry> join_neighbours(const std::vector<PieceBytes>& pieces);
  void make_folders(const std::filesystem::path& path);
  std::vector<TensorEntry> describe(const std::vector<Entry>& entries,
                                    Manifest& part,
                                    ByEntry& by_entry) const;
  void add_empty_tensors(Manifest& part) const;
  static std::vector<std::uint64_t> write_entry(Output& output,
                                                const Entry& entry,
                                                const std::atomic<bool>* stop,
                                                LiveBytes* live);
  [[nodiscard]] std::vector<int> ranks_here() const;
  [[nodiscard]] Manifest collect() const;
  void write_manifest();
  void put_in_place();
  void put_part_in_place();
  void refuse_shared_folder() const;
  void settle();
  void write_latest();

  Storage& storage_;
  std::filesystem::path root_;
  Meta meta_;
  std::vector<PieceBytes> pieces_;
  int rank_, size_, node_, nodes_;
  bool leads_;
  std::uint64_t save_ = 0;  ///< with several nodes: see NodePart
  std::filesystem::path final_, temp_, aside_;
  bool moved_aside_ = false, in_place_ = false;  ///< state of a node's part
};

}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
// What one rank does for a save, phase by phase. Every phase is disk work alone: no collective, no
// libtorch, on whichever thread calls it. Whoever drives it sees to it that all ranks have ended a
// phase before any begins the next.
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

/// One save on one rank. Each method throws Error{Io} where the disk refuses.
class Saver {
 public:
  /// Collective: the ranks agree on the temporary folder. write_shard() reads the memory of
  /// `pieces`.
  Saver(Storage& storage,
        std::filesystem::path root,
        Meta meta,
        std::vector<PieceBytes> pieces,
        const Ranks& ranks);

  /// Of several nodes, ahead of everything, the ranks that lead: what processes that are gone left
  /// goes, before any makes a folder that another might take for such.
  void clear();
  /// First, the ranks that lead: the temporary folder.
  void prepare();
  /// Second, every rank: its shard and the manifest of it, synced. Stops between two writes, with
  /// an Error{Io}, once `stop` is true. `live`: how to read pieces that are in use.
  void write_shard(const std::atomic<bool>* stop = nullptr, LiveBytes* live = nullptr);
  /// Third, the ranks that lead, for each `phase` of phases(): proves that the pieces are complete,
  /// and gives the folder its name. Of several nodes each knows its own pieces only: it seals its
  /// part, then names it, and when all have what it replaced goes, which does not fail.
  void publish(int phase = 0);
  [[nodiscard]] int phases() const { return nodes_ == 1 ? 1 : 3; }
  /// The ranks that lead, after a failure: the temporary folder goes, and a part of a node that
  /// has its name already.
  void discard() const;

  [[nodiscard]] const std::filesystem::path& folder() const { return final_; }

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
  void write_text(const std::filesystem::path& path, const std::string& text);
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
  std::uint64_t save_ = 0;  ///< of several nodes: see NodePart
  std::filesystem::path final_, temp_, aside_;
  bool moved_aside_ = false, in_place_ = false;  ///< of a part of a node
};

}  // namespace tessera::checkpoint

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

  /// First, rank 0: the temporary folder.
  void prepare();
  /// Second, every rank: its shard and the manifest of it, synced. Stops between two writes, with
  /// an Error{Io}, once `stop` is true. `live`: how to read pieces that are in use.
  void write_shard(const std::atomic<bool>* stop = nullptr, LiveBytes* live = nullptr);
  /// Third, rank 0: proves that the pieces are complete, and gives the folder its name.
  void publish();
  /// Rank 0, after a failure: the temporary folder goes.
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
  [[nodiscard]] Manifest collect() const;
  void put_in_place();

  Storage& storage_;
  std::filesystem::path root_;
  Meta meta_;
  std::vector<PieceBytes> pieces_;
  int rank_, size_;
  std::filesystem::path final_, temp_;
};

}  // namespace tessera::checkpoint

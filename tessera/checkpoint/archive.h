// SPDX-License-Identifier: Apache-2.0
// Reads the bytes of a checkpoint: shards are opened on first use, blocks are verified on first
// access.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/random_access.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

/// Reads pieces of tensors from a complete checkpoint, or from the parts of one that are available.
/// Errors are Error{Format} with file, tensor and place, without a fix: the caller knows which
/// older checkpoint to suggest. Memory: the headers, and 1 MiB per reading thread. Threads: const
/// methods from any thread.
class Archive {
 public:
  struct Piece {
    StoredPiece stored;
    std::unique_ptr<std::atomic<bool>[]> verified;  ///< one per block
  };
  struct Tensor {
    DType dtype = DType::F32;
    Shape shape;
    std::vector<Piece> pieces;
  };

  /// `parts`: other folders that hold shards of the same checkpoint, or nodes' parts of it. Throws
  /// Error{Format} if one belongs to another checkpoint.
  explicit Archive(const std::filesystem::path& folder,
                   std::vector<std::filesystem::path> parts = {});
  [[nodiscard]] const Meta& meta() const { return meta_; }
  [[nodiscard]] const std::map<std::string, Tensor, std::less<>>& tensors() const {
    return tensors_;
  }

  /// Returns the id of the save that wrote these parts; 0 if the checkpoint is not divided into
  /// parts.
  [[nodiscard]] std::uint64_t save_id() const { return part_ ? part_->save : 0; }
  /// Describes which parts are missing; empty if none is.
  [[nodiscard]] std::string missing_parts() const;
  /// Throws Error{Format} if parts are missing.
  void require_whole() const;

  /// Fills `out` with the elements of `want` as dtype `to`. Every block that is touched is verified
  /// once.
  void read(const std::string& name, const mesh::Piece& want, DType to, std::byte* out) const;
  /// Checks that every shard has the header that the manifest describes and that every piece is in
  /// place; no data is read.
  void check_files() const;
  /// Verifies every header and every block of every piece, even if it was verified before.
  void verify() const;

 private:
  struct Shard {
    Shard(const std::filesystem::path& path, std::optional<std::uint64_t> header_xxh3)
        : file(path, header_xxh3), data(path) {}
    SafetensorsFile file;
    RandomAccess data;
  };
  /// The location of a piece.
  struct Place {
    const RandomAccess* data = nullptr;
    std::uint64_t begin = 0, end = 0;  ///< bytes of the file
  };
  /// `tensor`: the tensor that needs the shard, for messages; empty if only the shard is named.
  [[nodiscard]] const Shard& shard(const std::string& file, const std::string& tensor = "") const;
  [[nodiscard]] Place place(const std::string& name,
                            const Tensor& tensor,
                            const Piece& piece) const;
  [[noreturn]] void damaged(const std::string& name,
                            const Piece& piece,
                            std::int64_t block,
                            std::int64_t size) const;
  void visit(const std::string& name,
             const Tensor& tensor,
             const Piece& piece,
             bool again,
             const mesh::Piece* want,
             DType to,
             std::byte* out) const;

  [[nodiscard]] std::filesystem::path find(const std::string& file) const;
  Manifest open_manifest();
  void require_here(const std::string& name, const Tensor& tensor, const mesh::Piece& want) const;

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> parts_;
  Meta meta_;
  std::optional<NodePart> part_;
  std::vector<int> missing_;  ///< numbers of missing node parts
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<std::string, std::uint64_t, std::less<>> headers_;  ///< as in Manifest
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<Shard>> shards_;
};

/// Fix of errors about a missing node part.
inline constexpr const char* kJoinParts =
    "resume on the hosts and with the layout that saved it, put the files of all hosts' folders "
    "into "
    "one, or join them: tessera checkpoint merge PART PART DST";

/// Returns the newest checkpoint next to `damaged` that is older and whose every checksum is
/// correct. Reads all of its bytes.
std::optional<std::filesystem::path> newest_intact_before(const std::filesystem::path& damaged);

}  // namespace tessera::checkpoint

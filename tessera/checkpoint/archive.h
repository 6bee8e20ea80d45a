// SPDX-License-Identifier: Apache-2.0
// A checkpoint's bytes: shards opened when they are first needed, blocks verified when they are
// first touched.
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

/// Reads pieces of tensors out of a complete checkpoint, or out of the parts of one that are here.
/// Errors are Error{Format} with file, tensor and place, without a remedy: whoever holds the folder
/// knows which older one to offer. Memory: the headers, and a MiB for each thread that reads.
/// Threads: const methods from any thread.
class Archive {
 public:
  struct Piece {
    StoredPiece stored;
    std::unique_ptr<std::atomic<bool>[]> verified;  ///< one a block
  };
  struct Tensor {
    DType dtype = DType::F32;
    Shape shape;
    std::vector<Piece> pieces;
  };

  /// `parts`: other folders that hold shards of the same checkpoint, or nodes' parts of it.
  /// Error{Format} if one of them is of another.
  explicit Archive(const std::filesystem::path& folder,
                   std::vector<std::filesystem::path> parts = {});
  [[nodiscard]] const Meta& meta() const { return meta_; }
  [[nodiscard]] const std::map<std::string, Tensor, std::less<>>& tensors() const {
    return tensors_;
  }

  /// Of the save whose parts these are; 0 where the checkpoint is in one.
  [[nodiscard]] std::uint64_t save_id() const { return part_ ? part_->save : 0; }
  /// Which parts are not here, in words; empty where all are.
  [[nodiscard]] std::string missing_parts() const;
  /// Error{Format} where some are missing.
  void require_whole() const;

  /// Fills `out` with the elements of `want` as dtype `to`. Every block that is touched is
  /// verified, once.
  void read(const std::string& name, const mesh::Piece& want, DType to, std::byte* out) const;
  /// Whether every shard has the header that the manifest knows and every piece its place in one:
  /// no data is read.
  void check_files() const;
  /// Every header, and every block of every piece, whether verified before or not.
  void verify() const;

 private:
  struct Shard {
    Shard(const std::filesystem::path& path, std::optional<std::uint64_t> header_xxh3)
        : file(path, header_xxh3), data(path) {}
    SafetensorsFile file;
    RandomAccess data;
  };
  /// Where a piece lies.
  struct Place {
    const RandomAccess* data = nullptr;
    std::uint64_t begin = 0, end = 0;  ///< bytes of the file
  };
  /// `tensor`: for whose sake; empty: the shard's own.
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
  std::vector<int> missing_;  ///< parts of nodes
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<std::string, std::uint64_t, std::less<>> headers_;  ///< as in Manifest
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<Shard>> shards_;
};

/// What to do where a part of a node is missing.
inline constexpr const char* kJoinParts =
    "go on with the hosts and the layout that saved it, put the files of all hosts' folders into "
    "one, or join them: tessera checkpoint merge PART PART DST";

/// The newest checkpoint beside `damaged` that is older than it and whose every checksum holds.
/// Reads all of its bytes.
std::optional<std::filesystem::path> newest_sound_before(const std::filesystem::path& damaged);

}  // namespace tessera::checkpoint

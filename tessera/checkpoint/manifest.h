// SPDX-License-Identifier: Apache-2.0
// The contents of manifest.json: what a checkpoint holds and where its bytes are. The format is
// specified in docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/geometry.h"

namespace tessera::checkpoint {

/// Bytes of a piece that share one checksum: the amount a rank must read to verify any of them.
inline constexpr std::int64_t kBlockBytes = std::int64_t{16} << 20;

/// A piece of a tensor in a file.
struct StoredPiece {
  std::string file;   ///< "rank-00000.safetensors"
  std::string entry;  ///< its name in the file
  mesh::Piece piece;
  std::vector<std::uint64_t>
      checksums;  ///< xxh3 of each block of kBlockBytes; the last one is shorter
};

struct StoredTensor {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  std::vector<StoredPiece> pieces;
};

/// Identifies one part of a checkpoint whose parts are on disks of nodes that do not share them.
struct NodePart {
  int node = 0, nodes = 2;
  std::uint64_t save = 0;  ///< the same in all parts of one save, and unique to it
};

/// The manifest of a checkpoint, of a node's part of it, or (during a save) of what one rank wrote.
struct Manifest {
  Meta meta;
  std::vector<StoredTensor> tensors;  ///< sorted by name
  /// xxh3 of each shard's header (its length and its JSON), by file. Contains the files of all
  /// pieces; empty if the manifest is of version 1, which had no header checksums.
  std::map<std::string, std::uint64_t, std::less<>> headers;
  std::optional<NodePart> part;
};

/// Merges several manifests: the pieces of all of them, and their headers.
class ManifestJoiner {
 public:
  /// Throws Error{kind}, which begins with `where`, if `part` contradicts earlier ones.
  void add(Manifest part, Error::Kind kind, const std::string& where);
  /// Moves the tensors and headers to `out`.
  void finish(Manifest& out);

 private:
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::uint64_t, std::less<>> headers_;
};

inline constexpr const char* kManifestName = "manifest.json";
/// Returns "rank-00012.safetensors".
std::string shard_name(int rank);
/// Returns "part-00012.json": the manifest of one rank's shard until rank 0 has collected it.
std::string part_name(int rank);

/// Returns the text of the file; its last line is a checksum of all lines before it.
std::string dump(const Manifest& manifest);
/// Reads a manifest and checks everything that can be checked without the shards: syntax, checksum,
/// names, shapes, pieces in place. Throws Error{Format} with file and field. Needs memory in
/// proportion to the file, which is at most 1 GiB.
Manifest read_manifest(const std::filesystem::path& path);
/// Does the same with the text of a manifest; `source` names it in messages.
Manifest parse_manifest(std::string_view text, const std::string& source);
/// Throws Error{kind} naming a tensor whose pieces do not hold each element exactly once; if parts
/// are missing, one whose pieces hold an element more than once.
void check_cover(const Manifest& manifest,
                 Error::Kind kind,
                 const std::string& where,
                 bool parts_missing = false);

}  // namespace tessera::checkpoint

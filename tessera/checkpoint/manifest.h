// SPDX-License-Identifier: Apache-2.0
// manifest.json in memory: what a checkpoint holds and where its bytes lie. Bytes:
// docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/geometry.h"

namespace tessera::checkpoint {

/// Bytes of a piece that share one checksum: what a rank has to read to trust any of them.
inline constexpr std::int64_t kBlockBytes = std::int64_t{16} << 20;

/// A piece of a tensor in a file.
struct StoredPiece {
  std::string file;   ///< "rank-00000.safetensors"
  std::string entry;  ///< its name there
  mesh::Piece piece;
  std::vector<std::uint64_t>
      checksums;  ///< xxh3 of each block of kBlockBytes, the last one shorter
};

struct StoredTensor {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  std::vector<StoredPiece> pieces;
};

/// Of a checkpoint that lies in parts, on disks of nodes that do not share them.
struct NodePart {
  int node = 0, nodes = 2;
  std::uint64_t save = 0;  ///< the same in all parts of one save, and in no other's
};

/// Of a checkpoint, of a node's part of it, or (while it is being saved) of what one rank wrote.
struct Manifest {
  Meta meta;
  std::vector<StoredTensor> tensors;  ///< by name
  /// xxh3 of each shard's header (its length and its JSON), by file; the files of all pieces are
  /// among them. Empty where the manifest is of version 1, which had none.
  std::map<std::string, std::uint64_t, std::less<>> headers;
  std::optional<NodePart> part;
};

/// Makes one manifest of several: the pieces of all of them, and their headers.
class ManifestJoiner {
 public:
  /// Error{kind}, which begins with `where`, if `part` contradicts those before it.
  void add(Manifest part, Error::Kind kind, const std::string& where);
  /// Puts the tensors and headers into `out`, and forgets them.
  void finish(Manifest& out);

 private:
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::uint64_t, std::less<>> headers_;
};

inline constexpr const char* kManifestName = "manifest.json";
/// "rank-00012.safetensors".
std::string shard_name(int rank);
/// "part-00012.json": the manifest of one rank's shard, until rank 0 has collected it.
std::string part_name(int rank);

/// The file's text; its last line is a checksum of all lines before it.
std::string dump(const Manifest& manifest);
/// Reads and checks everything that can be checked without the shards: syntax, checksum, names,
/// shapes, pieces in place. Error{Format} with file and field. Costs memory in proportion to the
/// file, which is at most 1 GiB.
Manifest read_manifest(const std::filesystem::path& path);
/// Error{kind} naming the tensor whose pieces do not hold each element exactly once; with `parts`
/// missing, more than once.
void check_cover(const Manifest& manifest,
                 Error::Kind kind,
                 const std::string& where,
                 bool parts_missing = false);

}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Checkpoints that do not depend on the layout: safetensors shards and manifest.json. The bytes are
// specified in docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/byte_source.h"
#include "tessera/base/dtype.h"
#include "tessera/config/json.h"
#include "tessera/mesh/shard_spec.h"

namespace tessera::checkpoint {

/// A piece of a global tensor in the memory of this rank. Names: a parameter's own name for its
/// fp32 master weights, "optimizer.exp_avg.<name>" for its state.
struct PieceBytes {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;  ///< global
  mesh::Piece piece;
  std::span<std::byte> bytes;  ///< read by save, written by load
  /// The bytes if they are outside of working memory; then `bytes` is empty. Only for save.
  std::shared_ptr<const ByteSource> source = {};
};

/// Everything in a checkpoint besides its tensors; stored in manifest.json.
struct Meta {
  std::int64_t step = 0;     ///< number of updates
  std::int64_t samples = 0;  ///< samples consumed, including dropped ones
  std::int64_t tokens = 0;
  json::Value config;  ///< resolved configuration
  json::Value extra;   ///< schedule, scaler, best evaluation, fingerprints, threads per rank
};

/// Communication between the ranks of a save or load; the defaults are for a single process.
struct Ranks {
  int rank = 0;
  int size = 1;
  std::function<void()> barrier = [] {};
  /// Returns the largest of the ranks' numbers at each place; all ranks pass as many. The result is
  /// the same on all ranks. Cost: one collective.
  std::function<std::vector<std::uint32_t>(std::vector<std::uint32_t>)> largest =
      [](std::vector<std::uint32_t> mine) { return mine; };
  /// More than one node: hosts that do not share folders, so that each keeps a part of a
  /// checkpoint. Ranks of one node share its folder; `local_rank` numbers them.
  int node = 0, nodes = 1, local_rank = 0;
  /// Returns true if any rank passes true; the same on all ranks. Cost: one collective.
  [[nodiscard]] bool any(bool mine) const { return largest({mine ? 1U : 0U}).front() != 0; }
  /// Returns whether this rank creates, publishes and removes folders.
  [[nodiscard]] bool is_leader() const { return nodes == 1 ? rank == 0 : local_rank == 0; }
};

/// Writes `root`/step-NNNNNNNN: every rank writes its own shard file under a temporary folder and
/// syncs it; rank 0 then collects the manifests of the ranks, syncs, renames the folder and updates
/// `latest`. Every piece is written once. On failure the previous checkpoints are unchanged, the
/// temporary folder is removed and all ranks throw the same Error{Io}. With several nodes, each
/// writes its part under its own `root`, and none is renamed before all are written.
std::filesystem::path save(const std::filesystem::path& root,
                           const Meta& meta,
                           std::span<const PieceBytes> pieces,
                           const Ranks& ranks);
/// Removes orphaned temporary folders and all complete checkpoints except the newest `keep` (at
/// least 1, otherwise Error{Config} and nothing is removed) and that of step `spared`. Call it on
/// rank 0 only, and not during a save.
void prune(const std::filesystem::path& root,
           int keep,
           std::optional<std::int64_t> spared = std::nullopt);

/// Lets `root`/best name the checkpoint of that step, or removes it. Error{Io}. Call it on rank 0
/// only.
void name_best(const std::filesystem::path& root, std::optional<std::int64_t> step);

/// Elements that are stored in the checkpoint of another program. Threads: const methods from any
/// thread.
class Source {
 public:
  virtual ~Source() = default;
  /// Fills `out` with the elements of `want` as dtype `to`. Throws Error{Format}.
  virtual void read(const std::string& name,
                    const mesh::Piece& want,
                    DType to,
                    std::byte* out) const = 0;
};

/// A complete checkpoint, opened: its manifest has been read and checked (Error{Format} with file
/// and field). It may also be one that another program wrote, behind a Source.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder);
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const Meta& meta() const { return meta_; }
  struct Tensor {
    std::string name;
    DType dtype = DType::F32;
    std::vector<std::int64_t> shape;
  };
  Checkpoint(std::filesystem::path folder,
             Meta meta,
             std::vector<Tensor> tensors,
             std::shared_ptr<const Source> source);
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] bool has(std::string_view name) const;
  /// Throws Error{Format} naming the missing parts, if the checkpoint was saved by nodes that share
  /// no disk. The available parts can be read without the others.
  void require_whole() const;
  /// Returns the id of the save, the same in all parts of one save; 0 if the checkpoint has no
  /// parts.
  [[nodiscard]] std::uint64_t save_id() const;
  /// Reads what `pieces` ask for, regardless of the layout that wrote it. Every byte read is
  /// covered by a verified checksum. Converts between float dtypes if they differ. Error{Format}
  /// names file and tensor of damage, or the tensor that is missing or has another shape.
  void load(std::span<const PieceBytes> pieces) const;
  /// Reads a whole tensor as fp32 values. Errors as in load().
  [[nodiscard]] std::vector<float> values(const Tensor& tensor) const;
  /// Checks that every shard exists and that its header has its checksum and matches the manifest.
  /// Throws Error{Format}.
  void check_files() const;
  /// Verifies the checksums of all headers and pieces.
  void verify() const;
  [[nodiscard]] std::uint64_t bytes() const;  ///< Returns the bytes of all tensors.
  /// Returns "NAME DTYPE [SHAPE] xxh3:HEX" for each tensor: parameters sorted by name, then
  /// optimizer.* likewise. The hash is that of the global tensor's bytes and does not depend on the
  /// layout.
  [[nodiscard]] std::vector<std::string> digest() const;

 private:
  struct Stored;
  void check(const PieceBytes& want) const;
  void read(const std::string& name, const mesh::Piece& want, DType to, std::byte* out) const;
  void index_tensors();
  std::filesystem::path folder_;
  Meta meta_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::shared_ptr<const Stored> stored_;  ///< a checkpoint of tessera, else null
  std::shared_ptr<const Source> source_;  ///< a checkpoint of another program, else null
};

/// Formats a line of digest().
std::string digest_line(std::string_view tensor,
                        DType dtype,
                        const std::vector<std::int64_t>& shape,
                        std::uint64_t xxh3);

/// Returns whether `folder` is a complete checkpoint of tessera, or a node's part of one.
bool is_checkpoint(const std::filesystem::path& folder);
/// Returns the complete checkpoints under `root` (a run's `checkpoints/`), oldest first. `latest`
/// is only a hint and is not consulted.
std::vector<std::filesystem::path> list(const std::filesystem::path& root);
/// Returns the newest complete checkpoint.
std::optional<std::filesystem::path> newest(const std::filesystem::path& root);

/// Subfolder of a run folder that holds its checkpoints.
inline constexpr const char* kFolderOfRun = "checkpoints";
/// Returns every complete checkpoint at `path`, oldest first; the path is that of a checkpoint, of
/// a run or of a run's `checkpoints/`, or one of its files `best` and `latest`. Empty if there is
/// none or the path does not exist.
std::vector<std::filesystem::path> found_at(const std::filesystem::path& path);
std::optional<std::filesystem::path> newest_at(const std::filesystem::path& path);
/// Returns whether `path` is such a path, even if the run has saved nothing yet.
bool is_ours(const std::filesystem::path& path);

}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Checkpoints that belong to the model, not to the layout: safetensors shards and manifest.json.
// Bytes: docs/formats/checkpoint.md.
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

#include "tessera/base/dtype.h"
#include "tessera/config/json.h"
#include "tessera/mesh/shard_spec.h"

namespace tessera::checkpoint {

/// A piece of a global tensor in this rank's memory. Names: a parameter's own name for its fp32
/// master weights, "optimizer.exp_avg.<name>" for its state.
struct PieceBytes {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;  ///< global
  mesh::Piece piece;
  std::span<std::byte> bytes;  ///< read by save, written by load
};

/// What a checkpoint says beside its tensors; all of it in manifest.json.
struct Meta {
  std::int64_t step = 0;     ///< updates made
  std::int64_t samples = 0;  ///< consumed, dropped ones included
  std::int64_t tokens = 0;
  json::Value config;  ///< resolved configuration
  json::Value extra;   ///< schedule, scaler, best evaluation, fingerprints, threads per rank
};

/// How ranks of a save or load meet; a lone process passes the defaults.
struct Ranks {
  int rank = 0;
  int size = 1;
  std::function<void()> barrier = [] {};
  /// True if any rank says true; the same on all.
  std::function<bool(bool)> any = [](bool mine) { return mine; };
  /// More than one node: hosts whose folders are not the same, so that each keeps a part of a
  /// checkpoint. Ranks of one node share its folder; `local_rank` counts them.
  int node = 0, nodes = 1, local_rank = 0;
  /// Whether this rank makes, publishes and removes folders.
  [[nodiscard]] bool leads() const { return nodes == 1 ? rank == 0 : local_rank == 0; }
};

/// Writes `root`/step-NNNNNNNN: every rank its own shard file under a temporary folder, synced;
/// rank 0 then collects the ranks' manifests, syncs, renames and updates `latest`. Every piece is
/// written once. On failure nothing of the previous checkpoints is touched, the temporary folder is
/// removed and all ranks throw the same Error{Io}.
/// Of several nodes each writes its part under its own `root`, and none is renamed before all are
/// written.
std::filesystem::path save(const std::filesystem::path& root,
                           const Meta& meta,
                           std::span<const PieceBytes> pieces,
                           const Ranks& ranks);
/// Removes complete checkpoints but the newest `keep` (at least 1, else Error{Config} and nothing
/// is removed) and that of step `spared`, and orphaned temporary folders. Rank 0 only, and not
/// while it saves.
void prune(const std::filesystem::path& root,
           int keep,
           std::optional<std::int64_t> spared = std::nullopt);

/// Elements that do not lie in a checkpoint of ours. Threads: const methods from any thread.
class Source {
 public:
  virtual ~Source() = default;
  /// Fills `out` with the elements of `want` as dtype `to`. Error{Format}.
  virtual void read(const std::string& name,
                    const mesh::Piece& want,
                    DType to,
                    std::byte* out) const = 0;
};

/// A complete checkpoint, opened: its manifest read and checked (Error{Format} with file and
/// field); or one that another program wrote, behind a Source.
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
  /// Error{Format} naming the parts that are not here, if it is of nodes that share no disk. What
  /// is here can be read without them.
  void require_whole() const;
  /// The same in all parts of one save; 0 where a checkpoint is no part.
  [[nodiscard]] std::uint64_t save_id() const;
  /// Reads what `pieces` ask for, whatever layout wrote it; each byte read is covered by a verified
  /// checksum. Converts between float dtypes where they differ. Error{Format} names file and tensor
  /// for damage, or the tensor that is missing or of another shape.
  void load(std::span<const PieceBytes> pieces) const;
  /// Whether every shard is there and its header has its checksum and what the manifest says.
  /// Error{Format}.
  void check_files() const;
  /// Every checksum of every header and piece.
  void verify() const;
  [[nodiscard]] std::uint64_t bytes() const;  ///< of all tensors
  /// "NAME DTYPE [SHAPE] xxh3:HEX" for each tensor, parameters sorted by name, then optimizer.*
  /// likewise; of the global tensor's bytes, the same whatever layout wrote it.
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
  std::shared_ptr<const Stored> stored_;  ///< one of ours, else null
  std::shared_ptr<const Source> source_;  ///< another program's, else null
};

/// A line of digest().
std::string digest_line(std::string_view tensor,
                        DType dtype,
                        const std::vector<std::int64_t>& shape,
                        std::uint64_t xxh3);

/// Whether `folder` is a complete checkpoint of ours, or a node's part of one.
bool is_checkpoint(const std::filesystem::path& folder);
/// Complete checkpoints under `root` (a run's `checkpoints/`), oldest first. `latest` is only a
/// hint and not consulted.
std::vector<std::filesystem::path> list(const std::filesystem::path& root);
/// The newest complete one.
std::optional<std::filesystem::path> newest(const std::filesystem::path& root);

/// Where a run keeps them, in its folder.
inline constexpr const char* kFolderOfRun = "checkpoints";
/// What a path stands for, that of a checkpoint, of a run or of a run's `checkpoints/`: every
/// complete checkpoint, oldest first. Empty where there is none, or nothing.
std::vector<std::filesystem::path> found_at(const std::filesystem::path& path);
std::optional<std::filesystem::path> newest_at(const std::filesystem::path& path);
/// Whether `path` is one of these, even if the run has saved nothing yet.
bool is_ours(const std::filesystem::path& path);

}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/archive.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/checkpoint/node_parts.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/two_threads.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Bytes that are hashed and copied at a time, so that they stay in the cache in between.
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

std::int64_t blocks_of(const StoredPiece& stored) {
  return static_cast<std::int64_t>(stored.checksums.size());
}

/// Returns elements [begin, end) of a stored piece, counted from its first.
mesh::Piece part_of(const mesh::Piece& piece, std::int64_t begin, std::int64_t end) {
  return {piece.box, piece.begin + begin, piece.begin + end};
}

/// Returns the address of `part` in the memory of `want` if all of it is contiguous there, else
/// null.
std::byte* whole_place(const mesh::Piece& part,
                       const mesh::Piece& want,
                       std::byte* out,
                       std::int64_t width) {
  SharedRuns runs(part, want);
  const auto run = runs.next();
  return run && run->a == 0 && run->count == part.end - part.begin ? out + run->b * width : nullptr;
}

/// All parts of one checkpoint have the same manifest; some may have none.
void require_same_manifest(const fs::path& mine, const fs::path& other) {
  std::error_code failed;
  if (!fs::exists(other, failed)) return;
  require_plain_file(mine, true);
  require_plain_file(other, true);
  TESSERA_REQUIRE(
      files::Mapped(mine).text() == files::Mapped(other).text(),
      Format,
      fmt::format("{} and {} belong to different checkpoints", mine.string(), other.string()),
      "name the parts of one save");
}

void fetch(const std::string& tensor,
           const RandomAccess& file,
           std::uint64_t at,
           std::span<std::byte> out) {
  try {
    file.read(at, out);
  } catch (const Error& error) {
    throw Error(error.kind(),
                fmt::format("{} (needed for tensor {})", error.what(), JsonCursor::shown(tensor)));
  }
}

/// Starts reading the next block from disk while this one is hashed.
void expect_block(const RandomAccess& file, std::uint64_t at, std::uint64_t end) {
  constexpr std::uint64_t kAhead = 2 * kBlockBytes;
  file.prefetch(at, std::min(kAhead, end - at));
}

/// Returns the range from the first to the last element that `part` shares with `want`.
std::pair<std::int64_t, std::int64_t> shared_span(const mesh::Piece& part,
                                                  const mesh::Piece& want) {
  std::int64_t first = part.end - part.begin, last = 0;
  SharedRuns runs(part, want);
  while (const auto run = runs.next()) {
    first = std::min(first, run->a);
    last = std::max(last, run->a + run->count);
  }
  return {std::min(first, last), last};
}

}  // namespace

Archive::Archive(const fs::path& folder, std::vector<fs::path> parts)
    : folder_(folder), parts_(std::move(parts)) {
  Manifest manifest = open_manifest();
  meta_ = std::move(manifest.meta);
  headers_ = std::move(manifest.headers);
  for (auto& tensor : manifest.tensors) {
    Tensor& mine = tensors_[tensor.name];
    mine.dtype = tensor.dtype;
    mine.shape = std::move(tensor.shape);
    for (auto& stored : tensor.pieces) {
      auto verified = std::make_unique<std::atomic<bool>[]>(stored.checksums.size());
      mine.pieces.push_back({std::move(stored), std::move(verified)});
    }
  }
}

/// Opens the manifest of the checkpoint, or joins those of all its available parts.
Manifest Archive::open_manifest() {
  std::error_code failed;
  const fs::path path = folder_ / kManifestName;
  if (!fs::exists(fs::symlink_status(path, failed)) && !node_parts_in(folder_).empty()) {
    std::vector<fs::path> folders = {folder_};
    folders.insert(folders.end(), parts_.begin(), parts_.end());
    JoinedParts joined = join_node_parts(folders);
    missing_ = std::move(joined.missing);
    part_ = joined.manifest.part;
    check_cover(joined.manifest, Error::Kind::Format, folder_.string(), !missing_.empty());
    return std::move(joined.manifest);
  }
  for (const fs::path& part : parts_)
    require_same_manifest(path, part / kManifestName);
  Manifest manifest = read_manifest(path);
  TESSERA_REQUIRE(
      !manifest.part,
      Format,
      fmt::format("{}: this is the manifest of a part, not of the whole checkpoint", path.string()),
      "");
  check_cover(manifest, Error::Kind::Format, path.string());
  return manifest;
}

std::string Archive::missing_parts() const {
  if (missing_.empty()) return "";
  std::vector<std::string> names;
  constexpr std::size_t kShown = 8;
  for (std::size_t i = 0; i < std::min(missing_.size(), kShown); ++i)
    names.push_back(node_part_name(missing_[i]));
  if (missing_.size() > kShown) names.emplace_back("...");
  return fmt::format("{} of its {} parts, with their shards, are missing: {}",
                     missing_.size(),
                     part_->nodes,
                     fmt::join(names, ", "));
}

void Archive::require_whole() const {
  TESSERA_REQUIRE(missing_.empty(),
                  Format,
                  fmt::format("{}: {}", folder_.string(), missing_parts()),
                  kJoinParts);
}

/// Pieces do not overlap, so counting elements is sufficient.
void Archive::require_here(const std::string& name,
                           const Tensor& tensor,
                           const mesh::Piece& want) const {
  std::int64_t here = 0;
  for (const Piece& piece : tensor.pieces) {
    SharedRuns runs(piece.stored.piece, want);
    while (const auto run = runs.next())
      here += run->count;
  }
  TESSERA_REQUIRE(here == want.end - want.begin,
                  Format,
                  fmt::format("{}: tensor {} has only {} of {} needed elements; {}",
                              folder_.string(),
                              JsonCursor::shown(name),
                              here,
                              want.end - want.begin,
                              missing_parts()),
                  kJoinParts);
}

fs::path Archive::find(const std::string& file) const {
  std::error_code failed;
  for (const fs::path& part : parts_) {
    if (!fs::exists(fs::symlink_status(folder_ / file, failed)) &&
        fs::exists(fs::symlink_status(part / file, failed)))
      return part / file;
  }
  return folder_ / file;
}

const Archive::Shard& Archive::shard(const std::string& file, const std::string& tensor) const {
  const std::lock_guard lock(mutex_);
  auto& slot = shards_[file];
  if (slot == nullptr) {
    try {
      const fs::path path = find(file);
      require_plain_file(path, false);
      const auto header = headers_.find(file);
      slot = std::make_unique<Shard>(
          path, header == headers_.end() ? std::nullopt : std::optional(header->second));
    } catch (const Error& error) {
      throw Error(
          error.kind(),
          tensor.empty()
              ? error.what()
              : fmt::format("{} (needed for tensor {})", error.what(), JsonCursor::shown(tensor)));
    }
  }
  return *slot;
}

Archive::Place Archive::place(const std::string& name,
                              const Tensor& tensor,
                              const Piece& piece) const {
  const Shard& found = shard(piece.stored.file, name);
  const SafetensorsFile& file = found.file;
  const TensorEntry* entry = file.find(piece.stored.entry);
  const auto count = static_cast<std::uint64_t>(piece.stored.piece.end - piece.stored.piece.begin);
  const bool fits = entry != nullptr && entry->dtype == tensor.dtype &&
                    entry->end - entry->begin == count * size_of(tensor.dtype);
  TESSERA_REQUIRE(
      fits,
      Format,
      fmt::format(
          "{}: its entry {} for tensor {} {}",
          file.path().string(),
          JsonCursor::shown(piece.stored.entry),
          JsonCursor::shown(name),
          entry == nullptr ? "is missing" : "has another size or dtype than the manifest says"),
      "");
  return {&found.data, file.data_begin() + entry->begin, file.data_begin() + entry->end};
}

void Archive::damaged(const std::string& name,
                      const Piece& piece,
                      std::int64_t block,
                      std::int64_t size) const {
  const SafetensorsFile& file = shard(piece.stored.file, name).file;
  const std::uint64_t begin = file.data_begin() + file.find(piece.stored.entry)->begin +
                              static_cast<std::uint64_t>(block * kBlockBytes);
  throw Error(
      Error::Kind::Format,
      fmt::format(
          "{}: tensor {} is damaged: bytes {} to {} of the file do not match their checksum",
          file.path().string(),
          JsonCursor::shown(name),
          begin,
          begin + static_cast<std::uint64_t>(size) - 1));
}

/// Hashes the blocks of a piece and copies what `want` (if given) shares with them. A block that
/// was verified before is hashed only if `again`; one that `want` does not touch is not read.
void Archive::visit(const std::string& name,
                    const Tensor& tensor,
                    const Piece& piece,
                    bool again,
                    const mesh::Piece* want,
                    DType to,
                    std::byte* out) const {
  const Place lies = place(name, tensor, piece);
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype)),
             to_width = static_cast<std::int64_t>(size_of(to));
  const std::int64_t count = piece.stored.piece.end - piece.stored.piece.begin;
  std::vector<std::byte> scratch;
  for (std::int64_t block = 0; block < blocks_of(piece.stored); ++block) {
    const std::int64_t begin = block * (kBlockBytes / width),
                       end = std::min(begin + kBlockBytes / width, count);
    if (want != nullptr && !touch(part_of(piece.stored.piece, begin, end), *want)) continue;
    const bool hashing = again || !piece.verified[static_cast<std::size_t>(block)].load();
    files::Hasher hasher;
    if (hashing)
      expect_block(*lies.data, lies.begin + static_cast<std::uint64_t>(begin * width), lies.end);
    for (std::int64_t at = begin, stop = 0; at < end; at = stop) {
      stop = std::min(at + kChunkBytes / width, end);
      std::int64_t from = at, to_end = stop;
      if (!hashing) {
        const auto [first, last] = shared_span(part_of(piece.stored.piece, at, stop), *want);
        from = at + first;
        to_end = at + last;
        if (from == to_end) continue;
      }
      const mesh::Piece part = part_of(piece.stored.piece, from, to_end);
      const auto size = static_cast<std::size_t>((to_end - from) * width);
      // Elements that need no conversion are read directly into place; others go through `scratch`.
      std::byte* direct = nullptr;
      if (want != nullptr && to == tensor.dtype) direct = whole_place(part, *want, out, width);
      if (direct == nullptr) scratch.resize(std::max(scratch.size(), size));
      std::byte* data = direct != nullptr ? direct : scratch.data();
      fetch(name, *lies.data, lies.begin + static_cast<std::uint64_t>(from * width), {data, size});
      if (hashing) hasher.update({data, size});
      if (want == nullptr || direct != nullptr) continue;
      SharedRuns runs(part, *want);
      while (const auto run = runs.next())
        convert(tensor.dtype, data + run->a * width, to, out + run->b * to_width, run->count);
    }
    if (!hashing) continue;
    if (hasher.digest() != piece.stored.checksums[static_cast<std::size_t>(block)]) {
      damaged(name, piece, block, (end - begin) * width);
    }
    piece.verified[static_cast<std::size_t>(block)].store(true);
  }
}

void Archive::read(const std::string& name,
                   const mesh::Piece& want,
                   DType to,
                   std::byte* out) const {
  const Tensor& tensor = tensors_.find(name)->second;
  if (!missing_.empty()) require_here(name, tensor, want);
  for (const Piece& piece : tensor.pieces) {
    if (touch(piece.stored.piece, want)) visit(name, tensor, piece, false, &want, to, out);
  }
}

void Archive::check_files() const {
  for (const auto& [name, tensor] : tensors_) {
    for (const Piece& piece : tensor.pieces)
      static_cast<void>(place(name, tensor, piece));
  }
  for (const auto& [file, header] : headers_)
    static_cast<void>(shard(file));
}

void Archive::verify() const {
  check_files();
  struct Item {
    const std::string& name;
    const Tensor& tensor;
    const Piece& piece;
  };
  std::vector<Item> all;
  for (const auto& [name, tensor] : tensors_) {
    for (const Piece& piece : tensor.pieces)
      all.push_back({name, tensor, piece});
  }
  on_two_threads(all.size(), [&](std::size_t i) {
    const Item& item = all[i];
    visit(item.name, item.tensor, item.piece, true, nullptr, item.tensor.dtype, nullptr);
  });
}

std::optional<fs::path> newest_intact_before(const fs::path& damaged) {
  const auto step = step_of(damaged);
  if (!step) return std::nullopt;
  const fs::path root = damaged.parent_path();
  try {
    auto all = list(root.empty() ? "." : root);
    for (auto at = all.rbegin(); at != all.rend(); ++at) {
      if (*step_of(*at) >= *step) continue;
      try {
        Archive(*at).verify();
        return *at;
      } catch (const Error&) {
        continue;  // damaged as well: try the next older one
      }
    }
  } catch (const Error&) {
    return std::nullopt;  // the folder cannot be listed: there is no suggestion
  }
  return std::nullopt;
}

}  // namespace tessera::checkpoint

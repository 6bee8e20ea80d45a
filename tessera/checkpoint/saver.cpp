// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/saver.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/consensus.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/node_parts.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Bytes that are hashed and written at a time, so that they stay in the cache in between.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

/// Returns an id that is unique and larger than those of earlier saves: the time in ns, with random
/// low bits.
std::uint64_t new_id() {
  constexpr std::uint64_t kChance = 0x3FF;
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  std::random_device device;
  return (static_cast<std::uint64_t>(now.count()) & ~kChance) | (device() & kChance);
}

void check(const PieceBytes& bytes) {
  const auto refuse = [&](const std::string& what) {
    throw Error(Error::Kind::Bug, fmt::format("saving tensor \"{}\": {}", bytes.name, what));
  };
  if (bytes.name.empty()) refuse("a tensor needs a name");
  if (checked_numel(bytes.shape) < 0) refuse("its shape overflows");
  const std::int64_t count = bytes.piece.end - bytes.piece.begin;
  if (bytes.source && !bytes.bytes.empty()) refuse("it has bytes in memory and elsewhere");
  const std::uint64_t size = bytes.source ? bytes.source->size() : bytes.bytes.size();
  if (count < 0 || size != static_cast<std::uint64_t>(count) * size_of(bytes.dtype))
    refuse(fmt::format("{} bytes for a piece of {} elements", size, count));
  if (count == 0) return;
  if (const auto wrong = misplaced(bytes.shape, bytes.piece)) refuse(*wrong);
}

/// Computes the checksums of a piece, one per block, from bytes that arrive in portions of any
/// size.
class BlockHasher {
 public:
  void update(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (hasher_ == nullptr) hasher_ = std::make_unique<files::Hasher>();
      const auto take = std::min<std::size_t>(bytes.size(), kBlockBytes - filled_);
      hasher_->update(bytes.first(take));
      filled_ += take;
      bytes = bytes.subspan(take);
      if (filled_ == kBlockBytes) close();
    }
  }
  std::vector<std::uint64_t> finish() {
    if (hasher_ != nullptr) close();
    return std::move(sums_);
  }

 private:
  void close() {
    sums_.push_back(hasher_->digest());
    hasher_.reset();
    filled_ = 0;
  }
  std::unique_ptr<files::Hasher> hasher_;
  std::size_t filled_ = 0;
  std::vector<std::uint64_t> sums_;
};

}  // namespace

/// A piece of the shard: neighbouring ranges of one box, joined.
struct Saver::Entry {
  std::string name;  ///< name of the tensor
  DType dtype;
  Shape shape;
  mesh::Piece piece;
  std::vector<const PieceBytes*> parts;  ///< neighbours in order
};

Saver::Saver(
    Storage& storage, fs::path root, Meta meta, std::vector<PieceBytes> pieces, const Ranks& ranks)
    : storage_(storage),
      root_(std::move(root)),
      meta_(std::move(meta)),
      pieces_(std::move(pieces)),
      rank_(ranks.rank),
      size_(ranks.size),
      node_(ranks.node),
      nodes_(ranks.nodes),
      leads_(ranks.is_leader()),
      final_(root_ / step_name(meta_.step)),
      aside_(root_ / replaced_name(meta_.step)) {
  const auto pid = broadcast(ranks, 0, static_cast<std::uint64_t>(::getpid()));
  const auto owner = static_cast<std::int64_t>(pid);
  temp_ = root_ /
          (nodes_ == 1 ? temp_name(meta_.step, owner) : node_temp_name(meta_.step, node_, owner));
  if (nodes_ > 1) save_ = broadcast(ranks, 0, new_id());
}

Saver::Saver(Storage& storage,
             fs::path folder,
             Meta meta,
             std::vector<PieceBytes> pieces,
             int rank,
             int size)
    : storage_(storage),
      meta_(std::move(meta)),
      pieces_(std::move(pieces)),
      rank_(rank),
      size_(size),
      node_(0),
      nodes_(1),
      leads_(rank == 0),
      final_(folder),
      temp_(std::move(folder)) {}

std::vector<Saver::Entry> Saver::join_neighbours(const std::vector<PieceBytes>& pieces) {
  std::vector<const PieceBytes*> sorted;
  for (const auto& piece : pieces) {
    check(piece);
    if (piece.piece.begin < piece.piece.end) sorted.push_back(&piece);
  }
  const auto key = [](const PieceBytes& p) {
    return std::tie(p.name, p.piece.box.begin, p.piece.box.end);
  };
  std::sort(sorted.begin(), sorted.end(), [&](const PieceBytes* a, const PieceBytes* b) {
    return std::tuple_cat(key(*a), std::tie(a->piece.begin)) <
           std::tuple_cat(key(*b), std::tie(b->piece.begin));
  });
  std::vector<Entry> entries;
  const PieceBytes* last = nullptr;
  for (const PieceBytes* piece : sorted) {
    const bool follows = last != nullptr && key(*last) == key(*piece) &&
                         last->shape == piece->shape && last->dtype == piece->dtype &&
                         last->piece.end == piece->piece.begin;
    if (!follows) entries.push_back({piece->name, piece->dtype, piece->shape, piece->piece, {}});
    entries.back().piece.end = piece->piece.end;
    entries.back().parts.push_back(piece);
    last = piece;
  }
  return entries;
}

void Saver::clear() {
  make_folders(root_);
  remove_stale_folders(storage_, root_);
}

void Saver::prepare() {
  TESSERA_ASSERT(meta_.step >= 0 && meta_.samples >= 0 && meta_.tokens >= 0);
  if (nodes_ == 1) clear();
  storage_.make_folder(temp_);
}

void Saver::make_folders(const fs::path& path) {
  if (path.empty() || fs::is_directory(path)) return;
  make_folders(path.parent_path());
  if (fs::is_directory(path)) return;  // "a/" is "a"
  storage_.make_folder(path);
  storage_.sync_folder(path.parent_path().empty() ? "." : path.parent_path());
}

void Saver::write_shard(const std::atomic<bool>* stop, LiveBytes* live) {
  const std::vector<Entry> entries = join_neighbours(pieces_);
  Manifest part;
  part.meta.step = meta_.step;
  ByEntry by_entry;
  std::vector<TensorEntry> layout = describe(entries, part, by_entry);
  const std::string header = lay_out(layout, {{"format", "pt"}});
  const std::uint64_t data_bytes = layout.empty() ? 0 : layout.back().end;
  const auto output = storage_.create(temp_ / shard_name(rank_), header.size() + data_bytes);
  part.headers[shard_name(rank_)] = files::xxh3(std::as_bytes(std::span(header)));
  output->append(std::as_bytes(std::span(header)));
  for (const auto& laid : layout) {
    const auto& [entry, stored] = by_entry.at(laid.name);
    stored->checksums = write_entry(*output, *entry, stop, live);
  }
  output->sync();
  write_text(temp_ / part_name(rank_), dump(part));
}

/// Fills `part` with the tensors and pieces of `entries` and names each piece in the file: NAME if
/// it is the whole tensor (so that other programs can read a single rank's shard), else NAME@ and
/// the index of its first element.
std::vector<TensorEntry> Saver::describe(const std::vector<Entry>& entries,
                                         Manifest& part,
                                         ByEntry& by_entry) const {
  std::vector<TensorEntry> layout;
  for (const Entry& entry : entries) {
    if (part.tensors.empty() || part.tensors.back().name != entry.name) {
      part.tensors.push_back({entry.name, entry.dtype, entry.shape, {}});
    }
    StoredTensor& tensor = part.tensors.back();
    TESSERA_REQUIRE(
        tensor.dtype == entry.dtype && tensor.shape == entry.shape,
        Bug,
        fmt::format("saving tensor \"{}\": two shapes or dtypes on one rank", entry.name),
        "");
    const std::int64_t count = entry.piece.end - entry.piece.begin;
    const bool whole = count == checked_numel(entry.shape);
    std::string name =
        whole ? entry.name
              : fmt::format("{}@{}", entry.name, first_index(entry.shape, entry.piece));
    tensor.pieces.push_back({shard_name(rank_), name, entry.piece, {}});
    layout.push_back(
        {.name = name, .dtype = entry.dtype, .shape = whole ? entry.shape : Shape{count}});
  }
  add_empty_tensors(part);
  std::size_t next = 0;
  for (auto& tensor : part.tensors) {
    for (auto& piece : tensor.pieces)
      by_entry[piece.entry] = {&entries[next++], &piece};
  }
  return layout;
}

/// A tensor without elements has no piece, but it exists.
void Saver::add_empty_tensors(Manifest& part) const {
  std::set<std::string> known;
  for (const auto& piece : pieces_) {
    if (checked_numel(piece.shape) == 0 && known.insert(piece.name).second) {
      part.tensors.push_back({piece.name, piece.dtype, piece.shape, {}});
    }
  }
}

std::vector<std::uint64_t> Saver::write_entry(Output& output,
                                              const Entry& entry,
                                              const std::atomic<bool>* stop,
                                              LiveBytes* live) {
  BlockHasher hasher;
  std::vector<std::byte> own;
  const auto copy_of = [&](const PieceBytes& piece, std::uint64_t begin, std::size_t size) {
    own.resize(kChunkBytes);
    const std::span<std::byte> out = std::span(own).first(size);
    if (piece.source) {
      piece.source->read(begin, out);
    } else {
      live->read(piece.bytes.subspan(begin, size), out.data());
    }
    return std::span<const std::byte>(out);
  };
  for (const PieceBytes* piece : entry.parts) {
    const std::uint64_t bytes = piece->source ? piece->source->size() : piece->bytes.size();
    for (std::uint64_t begin = 0; begin < bytes; begin += kChunkBytes) {
      if (stop != nullptr && stop->load()) throw Error(Error::Kind::Io, "the save was cancelled");
      const std::size_t size = std::min<std::uint64_t>(bytes - begin, kChunkBytes);
      const bool copies = live != nullptr || piece->source;
      const std::span<const std::byte> chunk =
          copies ? copy_of(*piece, begin, size) : piece->bytes.subspan(begin, size);
      hasher.update(chunk);
      output.append(chunk);
    }
  }
  return hasher.finish();
}

void Saver::write_text(const fs::path& path, const std::string& text) {
  const auto output = storage_.create(path, text.size());
  output->append(std::as_bytes(std::span(text)));
  output->sync();
}

/// Returns the ranks whose shards are in the temporary folder.
std::vector<int> Saver::ranks_here() const {
  std::vector<int> out;
  for (int rank = 0; rank < size_; ++rank) {
    if (nodes_ == 1 || fs::exists(temp_ / part_name(rank))) out.push_back(rank);
  }
  return out;
}

/// Joins their manifests and checks that they are complete as far as one node can know.
Manifest Saver::collect() const {
  ManifestJoiner joiner;
  const std::string where = "saving " + final_.string();
  for (const int rank : ranks_here())
    joiner.add(read_manifest(temp_ / part_name(rank)), Error::Kind::Bug, where);
  Manifest manifest;
  manifest.meta = meta_;
  if (nodes_ > 1) manifest.part = NodePart{.node = node_, .nodes = nodes_, .save = save_};
  joiner.finish(manifest);
  check_cover(manifest, Error::Kind::Bug, where, nodes_ > 1);
  return manifest;
}

void Saver::publish(int phase) {
  if (nodes_ == 1) {
    write_manifest();
    put_in_place();
    storage_.sync_folder(root_);
    return write_latest();
  }
  switch (phase) {
    case 0:
      return write_manifest();
    case 1:
      return put_part_in_place();
    default:
      return settle();
  }
}

void Saver::write_manifest() {
  write_text(temp_ / (nodes_ == 1 ? kManifestName : node_part_name(node_)), dump(collect()));
  for (const int rank : ranks_here())
    storage_.remove(temp_ / part_name(rank));
  storage_.sync_folder(temp_);
}

void Saver::write_latest() {
  try {
    storage_.write_atomic(root_ / "latest", final_.filename().string() + "\n");
  } catch (const Error& error) {
    log::warn(error.what());  // only a hint: the checkpoint itself is complete
  }
}

/// An older part of this step is kept until all nodes have the new one.
void Saver::put_part_in_place() {
  if (fs::exists(fs::symlink_status(final_))) {
    refuse_shared_folder();
    storage_.remove(aside_);
    storage_.rename(final_, aside_);
    moved_aside_ = true;
  }
  storage_.rename(temp_, final_);
  in_place_ = true;
  storage_.sync_folder(root_);
}

void Saver::refuse_shared_folder() const {
  bool shared = false;
  for (const fs::path& path : node_parts_in(final_)) {
    try {
      const auto part = read_manifest(path).part;
      shared = shared || (part && part->save == save_);
    } catch (const Error&) {
      continue;  // damaged, and about to be replaced
    }
  }
  TESSERA_REQUIRE(!shared,
                  Io,
                  fmt::format("another host has written its part to {}", final_.string()),
                  "set checkpoint.use_node_local_storage to false if the hosts share run.dir");
}

void Saver::settle() {
  try {
    if (moved_aside_) storage_.remove(aside_);
  } catch (const Error& error) {
    log::warn(error.what());  // the next save tries again
  }
  write_latest();
}

/// At every moment one complete checkpoint of this step has a name that list() finds.
void Saver::put_in_place() {
  if (!fs::exists(fs::symlink_status(final_))) {
    storage_.rename(temp_, final_);
  } else if (storage_.exchange(temp_, final_)) {
    storage_.sync_folder(root_);
    storage_.remove(temp_);
  } else {
    storage_.remove(aside_);
    storage_.rename(final_, aside_);
    storage_.rename(temp_, final_);
    storage_.sync_folder(root_);
    storage_.remove(aside_);
  }
}

void Saver::discard() const {
  if (!leads_) return;
  try {
    if (in_place_) storage_.rename(final_, temp_);
    if (moved_aside_) storage_.rename(aside_, final_);
    if (in_place_ || moved_aside_) storage_.sync_folder(root_);
    storage_.remove(temp_);
  } catch (const Error& error) {
    log::warn(error.what());  // the failure that led here is the one to report
  }
}

}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/peer_copies.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/geometry.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

/// A rank tries to reach a server for this number of seconds; then its copy fails.
constexpr double kReachS = 2.0;

/// Runs `work` and converts the failure of a server to that of a disk.
template <class Work>
void as_disk(Work work) {
  try {
    work();
  } catch (const Error& error) {
    throw Error(Error::Kind::Io, error.what(), error.fix());
  }
}

/// A file that is written to all servers of a target at once.
class CopyOutput final : public Output {
 public:
  CopyOutput(std::vector<hosts::CopyClient>& clients, const hosts::CopyFile& file)
      : clients_(clients) {
    as_disk([&] {
      for (hosts::CopyClient& client : clients_)
        client.begin(file);
    });
  }
  void append(std::span<const std::byte> bytes) override {
    as_disk([&] {
      for (hosts::CopyClient& client : clients_)
        client.append(bytes);
    });
  }
  void sync() override {
    as_disk([&] {
      for (hosts::CopyClient& client : clients_)
        client.finish();
    });
  }

 private:
  std::vector<hosts::CopyClient>& clients_;
};

/// The servers as the disk of a Saver, which only creates files there.
class CopyStorage final : public Storage {
 public:
  CopyStorage(CopyTarget target, int rank, int num_ranks)
      : target_(std::move(target)), rank_(rank), num_ranks_(num_ranks) {}

  std::unique_ptr<Output> create(const fs::path& path, std::uint64_t bytes) override {
    as_disk([&] {
      if (!clients_.empty()) return;
      clients_.reserve(target_.places.size());
      for (const hosts::CopyPlace& place : target_.places)
        clients_.emplace_back(place, target_.secret, kReachS);
    });
    const std::string name = path.filename().string();
    return std::make_unique<CopyOutput>(clients_,
                                        hosts::CopyFile{.set = target_.set,
                                                        .keep = target_.keep,
                                                        .num_ranks = num_ranks_,
                                                        .rank = rank_,
                                                        .is_last = name == part_name(rank_),
                                                        .name = name,
                                                        .bytes = bytes});
  }
  void close() { clients_.clear(); }

  void make_folder(const fs::path& /*path*/) override {}
  void sync_folder(const fs::path& /*path*/) override {}
  void rename(const fs::path& /*from*/, const fs::path& /*to*/) override {}
  bool exchange(const fs::path& /*a*/, const fs::path& /*b*/) override { return false; }
  void remove(const fs::path& /*path*/) override {}
  void write_atomic(const fs::path& /*path*/, std::string_view /*content*/) override {}

 private:
  CopyTarget target_;
  std::int32_t rank_, num_ranks_;
  std::vector<hosts::CopyClient> clients_;
};

/// Holds the storage before the base class that refers to it.
struct OwnsStorage {
  CopyStorage copies;
};

class CopySaver final : private OwnsStorage, public Saver {
 public:
  CopySaver(CopyTarget target, Meta meta, std::vector<PieceBytes> pieces, int rank, int num_ranks)
      : OwnsStorage{CopyStorage(std::move(target), rank, num_ranks)},
        Saver(copies, "copies", std::move(meta), std::move(pieces), rank, num_ranks),
        rank_(rank) {}

  void clear() override {}
  void prepare() override {}
  void write_shard(const std::atomic<bool>* stop, LiveBytes* live) override {
    if (rank_ == 0) {
      Manifest alone;
      alone.meta = meta();
      write_text(kManifestName, dump(alone));
    }
    Saver::write_shard(stop, live);
    copies.close();
  }
  void publish(int /*phase*/) override {}
  [[nodiscard]] int phases() const override { return 1; }
  void discard() const override {}

 private:
  int rank_;
};

std::string shown(const hosts::CopySet& set) {
  return fmt::format("the copies of step {} in memory", set.step);
}

/// Reads a set of copies, block by block.
class CopySource final : public Source {
 public:
  CopySource(const hosts::CopyPart& part, const hosts::Secret& secret)
      : places_(part.places), secret_(secret), set_(part.from) {
    find_files();
    ManifestJoiner joiner;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      Manifest mine = manifest(part_name(rank));
      locate(mine);
      joiner.add(std::move(mine), Error::Kind::Format, shown(set_));
    }
    manifest_ = manifest(kManifestName);
    joiner.finish(manifest_);
    check_cover(manifest_, Error::Kind::Format, shown(set_));
    for (const StoredTensor& tensor : manifest_.tensors)
      by_name_[tensor.name] = &tensor;
    clients_.clear();
  }
  [[nodiscard]] const Meta& meta() const { return manifest_.meta; }
  [[nodiscard]] std::vector<Checkpoint::Tensor> tensors() const {
    std::vector<Checkpoint::Tensor> out;
    for (const StoredTensor& tensor : manifest_.tensors)
      out.push_back({tensor.name, tensor.dtype, tensor.shape});
    return out;
  }

  void read(const std::string& name,
            const mesh::Piece& want,
            DType to,
            std::byte* out) const override {
    const StoredTensor& tensor = *by_name_.at(name);
    for (const StoredPiece& stored : tensor.pieces) {
      if (touch(stored.piece, want)) read_piece(tensor, stored, want, to, out);
    }
  }

 private:
  void find_files() {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      for (const hosts::CopyListing& listing : client(i).list()) {
        if (listing.set != set_) continue;
        num_ranks_ = listing.num_ranks;
        for (const std::string& name : listing.names)
          place_of_.emplace(name, i);
      }
    }
  }

  /// Computes where the pieces of a rank's shard are: its header follows from its manifest.
  void locate(const Manifest& part) {
    std::map<std::string, std::vector<TensorEntry>> layouts;
    for (const auto& [file, sum] : part.headers)
      layouts[file];
    for (const StoredTensor& tensor : part.tensors) {
      for (const StoredPiece& stored : tensor.pieces) {
        const std::int64_t count = stored.piece.end - stored.piece.begin;
        const bool whole = count == checked_numel(tensor.shape);
        layouts[stored.file].push_back({.name = stored.entry,
                                        .dtype = tensor.dtype,
                                        .shape = whole ? tensor.shape : Shape{count}});
      }
    }
    for (auto& [file, layout] : layouts) {
      const std::string header = lay_out(layout, {{"format", "pt"}});
      const auto expected = part.headers.find(file);
      TESSERA_REQUIRE(expected != part.headers.end() &&
                          expected->second == files::xxh3(std::as_bytes(std::span(header))),
                      Format,
                      fmt::format("{}: the header of {} is another one", shown(set_), file),
                      "");
      for (const TensorEntry& entry : layout)
        begin_of_[{file, entry.name}] = header.size() + entry.begin;
    }
  }

  [[nodiscard]] Manifest manifest(const std::string& name) const {
    const std::size_t place = place_of(name);
    return parse_manifest(client(place).read_rest(set_, name),
                          fmt::format("{}, {} of host {}", shown(set_), name, places_[place].host));
  }

  [[nodiscard]] std::size_t place_of(const std::string& file) const {
    const auto found = place_of_.find(file);
    TESSERA_REQUIRE(
        found != place_of_.end(), Format, fmt::format("{} lack {}", shown(set_), file), "");
    return found->second;
  }

  void read_piece(const StoredTensor& tensor,
                  const StoredPiece& stored,
                  const mesh::Piece& want,
                  DType to,
                  std::byte* out) const {
    const auto width = static_cast<std::int64_t>(size_of(tensor.dtype)),
               to_width = static_cast<std::int64_t>(size_of(to));
    const std::int64_t count = stored.piece.end - stored.piece.begin,
                       per_block = kBlockBytes / width;
    const std::uint64_t begin_of_data = begin_of_.at({stored.file, stored.entry});
    const std::size_t place = place_of(stored.file);
    for (std::size_t block = 0; block < stored.checksums.size(); ++block) {
      const std::int64_t begin = static_cast<std::int64_t>(block) * per_block,
                         end = std::min(begin + per_block, count);
      const mesh::Piece part{
          stored.piece.box, stored.piece.begin + begin, stored.piece.begin + end};
      if (!touch(part, want)) continue;
      bytes_.resize(static_cast<std::size_t>((end - begin) * width));
      client(place).read(
          set_, stored.file, begin_of_data + static_cast<std::uint64_t>(begin * width), bytes_);
      TESSERA_REQUIRE(
          files::xxh3(bytes_) == stored.checksums[block],
          Format,
          fmt::format(
              "{}: tensor {} is damaged on host {}", shown(set_), tensor.name, places_[place].host),
          "");
      SharedRuns runs(part, want);
      while (const auto run = runs.next())
        convert(
            tensor.dtype, bytes_.data() + run->a * width, to, out + run->b * to_width, run->count);
    }
  }

  /// The connections of this process. A forked process closes its copies of those of its parent.
  hosts::CopyClient& client(std::size_t place) const {
    if (process_ != getpid()) clients_.clear();
    process_ = getpid();
    const auto found = clients_.find(place);
    if (found != clients_.end()) return found->second;
    return clients_.try_emplace(place, places_[place], secret_).first->second;
  }

  std::vector<hosts::CopyPlace> places_;
  hosts::Secret secret_;
  hosts::CopySet set_;
  int num_ranks_ = 0;
  std::map<std::string, std::size_t> place_of_;                            ///< by file
  std::map<std::pair<std::string, std::string>, std::uint64_t> begin_of_;  ///< by file and entry
  Manifest manifest_;
  std::map<std::string, const StoredTensor*> by_name_;
  mutable pid_t process_ = 0;
  mutable std::map<std::size_t, hosts::CopyClient> clients_;
  mutable std::vector<std::byte> bytes_;  ///< of one block
};

}  // namespace

std::unique_ptr<Saver> copy_saver(
    CopyTarget target, Meta meta, std::vector<PieceBytes> pieces, int rank, int num_ranks) {
  return std::make_unique<CopySaver>(
      std::move(target), std::move(meta), std::move(pieces), rank, num_ranks);
}

Checkpoint open_copies(const hosts::CopyPart& part, const hosts::Secret& secret) {
  auto source = std::make_shared<const CopySource>(part, secret);
  return {shown(part.from), source->meta(), source->tensors(), source};
}

}  // namespace tessera::checkpoint

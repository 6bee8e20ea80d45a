// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks of a host can address: one arena per rank, which its owner hands out and
// all ranks may access.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tessera/comm/transport.h"
#include "tessera/memory/ledger.h"

namespace tessera::comm {

/// The address space of one arena in this process. Pages exist only where they were reserved.
class Mapping {
 public:
  virtual ~Mapping() = default;
  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Reserves zeroed pages of [offset, offset + bytes). Returns 0, or the errno if there is not
  /// enough memory.
  virtual int reserve(std::size_t offset, std::size_t bytes) noexcept = 0;
  /// Gives the pages back to the kernel.
  virtual void release(std::size_t offset, std::size_t bytes) noexcept = 0;

 protected:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Returns a mapping private to this process, for ranks that are threads. Throws Error{Memory}.
std::shared_ptr<Mapping> map_anonymous(std::size_t bytes);
/// Maps the first `bytes` of a memory file. Does not own the descriptor. Throws Error{Environment}.
std::shared_ptr<Mapping> map_file(int descriptor, std::size_t bytes);

/// Hands out an arena in multiples of 4096 bytes. Freed pages go back to the kernel at once, and
/// their addresses are reused. Regions keep the mapping alive. Threads: any.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  /// Reserves the first `header_bytes`, which are never handed out.
  Arena(std::shared_ptr<Mapping> mapping, std::size_t header_bytes);

  /// Allocates memory charged to the current ledger under `tag`. Throws Error{Memory}.
  RegionPtr allocate(std::size_t bytes, memory::Tag tag);
  /// Returns the live region that contains all of [data, data + bytes), or null.
  RegionPtr find(const void* data, std::size_t bytes);
  [[nodiscard]] std::size_t offset_of(const void* data) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(data) - mapping_->base());
  }
  /// After this call freed regions keep their contents: peers may still read what the owner left
  /// behind.
  void close() noexcept;

 private:
  class Allocation;
  std::size_t take(std::size_t bytes, memory::Tag tag);
  void give_back(std::size_t offset, std::size_t bytes) noexcept;
  void insert_free(std::size_t offset, std::size_t bytes);

  std::shared_ptr<Mapping> mapping_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  ///< offset -> bytes; neighbours are joined
  std::map<std::size_t, std::weak_ptr<Region>> live_;
  std::atomic<std::size_t> held_{0};
  bool closed_ = false;
};

/// The arenas of a world as one rank sees them; those of peers are mapped on first use. Threads:
/// that of the rank.
class Arenas {
 public:
  using Open = std::function<std::shared_ptr<Mapping>(int rank)>;
  Arenas(int ranks, Open open)
      : open_(std::move(open)), mappings_(static_cast<std::size_t>(ranks)) {}
  Mapping& of(int rank) { return *share(rank); }
  const std::shared_ptr<Mapping>& share(int rank);
  [[nodiscard]] int ranks() const { return static_cast<int>(mappings_.size()); }

 private:
  Open open_;
  std::vector<std::shared_ptr<Mapping>> mappings_;
};

}  // namespace tessera::comm

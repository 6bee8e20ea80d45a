// SPDX-License-Identifier: Apache-2.0
// Memory outside of working memory, in which values rest while nothing computes with them. Each
// kind is one file in this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/byte_source.h"
#include "tessera/base/registry.h"
#include "tessera/memory/ledger.h"

namespace tessera::memory {

/// A transfer that was started. Tickets of a file ascend.
struct Ticket {
  std::uint64_t id = 0;
};

/// The bytes of one buffer of a rank, zero at first. Positions and sizes are multiples of the
/// tier's block(). Transfers of a file take effect in the order in which they were started. Used
/// only on the rank's own thread; the tier itself may have others.
class TierFile {
 public:
  virtual ~TierFile() = default;  ///< waits for transfers that use the caller's memory
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Starts to read into `to`, which belongs to the tier until wait(). Never blocks.
  virtual Ticket read(std::int64_t at, std::span<std::byte> to) = 0;
  /// Starts to write `from`, which must not change until wait(). Never blocks.
  virtual Ticket write(std::int64_t at, std::span<const std::byte> from) = 0;
  /// Waits until the transfer has ended. Throws Error{Io}, naming tier, file, position and remedy,
  /// if it or one that was started earlier failed, or if bytes that were read are damaged. A ticket
  /// may be waited for again.
  virtual void wait(Ticket ticket) = 0;
  /// Returns the bytes after all writes that were started. Later writes do not change them.
  virtual std::shared_ptr<const ByteSource> snapshot() = 0;
};

/// Numbers since the tier was made.
struct TierUse {
  std::int64_t read_bytes = 0, written_bytes = 0;
  double waited_s = 0;  ///< that wait() has blocked
  friend TierUse operator+(const TierUse& a, const TierUse& b) {
    return {
        a.read_bytes + b.read_bytes, a.written_bytes + b.written_bytes, a.waited_s + b.waited_s};
  }
  friend TierUse operator-(const TierUse& later, const TierUse& before) {
    return {later.read_bytes - before.read_bytes,
            later.written_bytes - before.written_bytes,
            later.waited_s - before.waited_s};
  }
};

/// Used only on the rank's own thread. It must outlive its files, but not their snapshots.
class Tier {
 public:
  virtual ~Tier() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual std::int64_t block() const = 0;  ///< bytes
  /// Reserves all of `bytes`, a multiple of block(); `what` names the contents in errors. Throws
  /// Error{Io} or Error{Memory} if there is no room, with the number of bytes.
  virtual std::unique_ptr<TierFile> open(std::string what, std::int64_t bytes) = 0;
  [[nodiscard]] virtual TierUse use() const = 0;
};

struct TierOptions {
  std::string folder;                                ///< of tiers on a disk
  std::int64_t block_bytes = std::int64_t{1} << 20;  ///< a multiple of kPageBytes
  int transfers = 4;  ///< transfers of blocks that are under way at a time, at most kMostTransfers
  /// Past the page cache, where the file system can.
  bool direct = true;
  /// The bytes in whole blocks.
  [[nodiscard]] std::int64_t in_blocks(std::int64_t bytes) const {
    return (bytes + block_bytes - 1) / block_bytes * block_bytes;
  }
  bool operator==(const TierOptions&) const = default;
};
inline constexpr int kMostTransfers = 64;
using TierFactory = std::unique_ptr<Tier> (*)(const TierOptions&);
Registry<TierFactory>& tiers();
/// Registers the class of a tier, which is constructed from its options.
#define TESSERA_TIER(name, Class)                                                      \
  [[maybe_unused]] const bool TESSERA_UNIQUE(kTier) =                                  \
      ::tessera::memory::tiers().add(name,                                             \
                                     [](const ::tessera::memory::TierOptions& options) \
                                         -> std::unique_ptr<::tessera::memory::Tier> { \
                                       return std::make_unique<Class>(options);        \
                                     })

/// Working memory for transfers: zeroed, aligned for direct access to disks, and counted by the
/// ledger under the current tag.
class StagingMemory {
 public:
  StagingMemory() = default;
  explicit StagingMemory(std::int64_t bytes);
  ~StagingMemory();
  StagingMemory(StagingMemory&& other) noexcept;
  StagingMemory& operator=(StagingMemory&& other) noexcept;
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
  Charge charge_;
};

}  // namespace tessera::memory

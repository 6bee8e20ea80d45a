// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging: the pair of lowest rank first, the leftmost of equal pairs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

/// The parts of a byte-level BPE tokenizer, independent of its files.
struct BpeModel {
  struct Merge {
    std::int32_t left, right, result;
  };
  std::vector<std::string> tokens;  ///< bytes by id; empty for an id without a token
  std::vector<Merge> merges;        ///< by rank
  std::int32_t end_of_text = -1;
};

/// Reads vocab.json and merges.txt in GPT-2's format. Throws Error{Format} with file and line if
/// they are inconsistent.
BpeModel read_bpe(const std::string& vocab_path, const std::string& merges_path);
/// Reads a tokenizer.json whose parts do the same as GPT-2's; throws Error{Unsupported} that names
/// the first part that does not.
BpeModel read_bpe_json(const std::string& path);
/// The same check for a tokenizer.json next to vocab.json and merges.txt, which do not describe the
/// other processing of text.
void require_gpt2_parts_of(const std::string& path);

/// Maps (left, right) to rank and merged id. Open addressing, half empty.
class PairTable {
 public:
  struct Hit {
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  PairTable() = default;
  /// The rank of a merge is its index in the list.
  explicit PairTable(const std::vector<BpeModel::Merge>& merges);
  /// ranks[i] is the rank of merges[i]; equal ranks are allowed.
  PairTable(const std::vector<BpeModel::Merge>& merges, const std::vector<std::uint32_t>& ranks);
  [[nodiscard]] Hit find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = pack(left, right);
    for (std::size_t i = slot(key);; i = (i + 1) & mask_) {
      const Slot& s = slots_[i];
      if (s.key == key) return {s.rank, s.id};
      if (s.key == kEmpty) return {kNone, -1};
    }
  }

 private:
  void reserve(std::size_t count);
  void put(const BpeModel::Merge& merge, std::uint32_t rank);
  struct Slot {
    std::uint64_t key;
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t pack(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::size_t slot(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> shift_);
  }
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  int shift_ = 63;
};

/// Merges one piece. Has scratch memory, so each thread needs its own instance; the table is
/// shared.
class BpeMerger {
 public:
  explicit BpeMerger(const PairTable& pairs) : pairs_(pairs) {}
  /// `symbols` are the ids of single bytes; returns the ids after all merges, valid until the next
  /// call. Cost: quadratic for short pieces; n log n from kHeapFrom symbols on, so that no text is
  /// slow.
  std::span<const std::int32_t> merge(std::span<const std::int32_t> symbols);

  static constexpr std::size_t kHeapFrom = 96;

 private:
  std::span<const std::int32_t> merge_by_scan();
  std::span<const std::int32_t> merge_by_heap();

  struct Node {
    std::int32_t previous, next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t position;
    std::int32_t id;
  };
  const PairTable& pairs_;
  std::vector<std::int32_t> ids_;
  std::vector<PairTable::Hit> hits_;
  std::vector<Node> nodes_;
  std::vector<Candidate> heap_;
};

}  // namespace tessera::text

// SPDX-License-Identifier: Apache-2.0
// Tokens on disk: Megatron's .bin/.idx pair, memory-mapped. Byte layout: docs/formats/tokens.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/block_sums.h"
#include "tessera/text/tokenizer.h"

namespace tessera::data {

/// A memory-mapped .bin/.idx pair. Every length and offset is checked against the file before use
/// (Error{Data} or Error{Format} with the file's name). Const methods can be called from any
/// thread.
class TokenFile {
 public:
  /// `path`: the prefix, or the name of the .bin or .idx.
  static std::shared_ptr<const TokenFile> open(const std::filesystem::path& path);
  /// As open(), for a pair of the cache: read() verifies the blocks of the .bin against `sums` and
  /// throws Error{Data} with `fix` if one was changed.
  static std::shared_ptr<const TokenFile> open_verified(const std::filesystem::path& prefix,
                                                        BlockSums sums,
                                                        const std::string& fix);
  virtual ~TokenFile() = default;
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  [[nodiscard]] virtual std::int64_t sequences() const = 0;
  [[nodiscard]] virtual std::int64_t sequence_begin(std::int64_t index) const = 0;  ///< in tokens
  [[nodiscard]] virtual std::int64_t sequence_length(std::int64_t index) const = 0;
  /// The documents of a file whose sequences are their sentences (Megatron-LM's preprocess_data.py
  /// --split-sentences); 0: the format has none.
  [[nodiscard]] virtual std::int64_t documents() const { return 0; }
  /// The first sequence of a document; that of documents() is sequences().
  [[nodiscard]] virtual std::int64_t document_begin(std::int64_t /*index*/) const { return 0; }
  /// Copies tokens [begin, begin + count) as int64.
  virtual void read(std::int64_t begin, std::int64_t count, std::int64_t* out) const = 0;
  /// The largest id that the file's numbers can represent.
  [[nodiscard]] virtual std::int64_t largest_id() const {
    return std::numeric_limits<std::int32_t>::max();
  }
  /// Throws Error{Data} with file, position and id if one is not below `vocab`. `poll`: see
  /// TokenizeOptions.
  virtual void check_ids(std::int64_t vocab, const std::function<void()>& poll = {}) const = 0;
};

/// Statistics of a tokenization.
struct TokenizeStats {
  std::int64_t documents = 0, tokens = 0, bytes = 0, skipped_empty = 0, replaced_utf8 = 0;
  std::int64_t bad_records = 0;  ///< skipped records
  /// Adds the statistics of another source.
  TokenizeStats& operator+=(const TokenizeStats& other) {
    documents += other.documents;
    tokens += other.tokens;
    bytes += other.bytes;
    skipped_empty += other.skipped_empty;
    replaced_utf8 += other.replaced_utf8;
    bad_records += other.bad_records;
    return *this;
  }
};
struct TokenizeOptions {
  std::string text_field = "text";
  std::string invalid_utf8 = "refuse";
  int threads = 0;  ///< 0: one per core
  /// Called with bytes done and total bytes, by one thread at a time.
  std::function<void(std::int64_t, std::int64_t)> progress;
  /// Called periodically from the caller's thread; an exception from it aborts the work, and no
  /// files remain.
  std::function<void()> poll;
};
/// Tokenizes .txt (one document), .jsonl (one document per line), folders of them and lists into
/// PREFIX.bin/.idx (temporary names, synced, renamed). End of text separates two documents. Works
/// in parallel; the bytes do not depend on the number of threads. Throws Error{Data} with
/// file:line:byte, and Error{Io} for a full disk, after which no files remain.
TokenizeStats tokenize(const std::vector<std::filesystem::path>& sources,
                       const text::Tokenizer& tokenizer,
                       const std::filesystem::path& prefix,
                       const TokenizeOptions& options);
/// The token file of `sources`: the sources themselves if they are a .bin/.idx pair, else the
/// cached one under files::cache_dir() / "tokens", keyed by a hash of contents and tokenizer, built
/// once per host under a lock and renamed when complete.
std::shared_ptr<const TokenFile> tokens_of(const std::vector<std::filesystem::path>& sources,
                                           const text::Tokenizer& tokenizer,
                                           const TokenizeOptions& options,
                                           TokenizeStats* stats = nullptr);

}  // namespace tessera::data

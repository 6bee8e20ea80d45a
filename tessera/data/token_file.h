// SPDX-License-Identifier: Apache-2.0
// Tokens on disk: Megatron's .bin/.idx pair, mapped. Bytes: docs/formats/tokens.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

/// A mapped .bin/.idx pair. Every length and offset is checked against the file before use
/// (Error{Data} or Error{Format} naming the file). Threads: const methods from any thread.
class TokenFile {
 public:
  /// `path`: prefix, or the name of the .bin or .idx.
  static std::shared_ptr<const TokenFile> open(const std::filesystem::path& path);
  virtual ~TokenFile() = default;
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  [[nodiscard]] virtual std::int64_t sequences() const = 0;
  [[nodiscard]] virtual std::int64_t sequence_begin(std::int64_t index) const = 0;  ///< in tokens
  [[nodiscard]] virtual std::int64_t sequence_length(std::int64_t index) const = 0;
  /// Copies tokens [begin, begin + count) as int64.
  virtual void read(std::int64_t begin, std::int64_t count, std::int64_t* out) const = 0;
  /// Error{Data} naming file, position and id if one is not below `vocab`. `poll` as in
  /// TokenizeOptions.
  virtual void check_ids(std::int64_t vocab, const std::function<void()>& poll = {}) const = 0;
};

/// What came of tokenizing.
struct TokenizeStats {
  std::int64_t documents = 0, tokens = 0, bytes = 0, skipped_empty = 0, replaced_utf8 = 0;
  std::int64_t bad_records = 0;  ///< records that were left out
};
struct TokenizeOptions {
  std::string text_field = "text";
  std::string invalid_utf8 = "refuse";
  int threads = 0;  ///< 0: as many as cores
  /// bytes done, bytes in all; from one thread at a time.
  std::function<void(std::int64_t, std::int64_t)> progress;
  /// Called every so often from the caller's thread; what it throws ends the work, of which nothing
  /// is left behind.
  std::function<void()> poll;
};
/// Tokenizes .txt (one document), .jsonl (one a line), folders of them and lists into
/// PREFIX.bin/.idx (temporary names, synced, renamed). End of text stands between two documents.
/// Parallel, the same bytes for any number of threads. Errors are Error{Data} with file:line:byte;
/// Error{Io} for a full disk, which leaves nothing behind.
TokenizeStats tokenize(const std::vector<std::filesystem::path>& sources,
                       const Tokenizer& tokenizer,
                       const std::filesystem::path& prefix,
                       const TokenizeOptions& options);
/// The token file of `sources`: themselves if they are a .bin/.idx pair, else the cached one under
/// files::cache_dir() / "tokens" keyed by a hash of contents and tokenizer, built once a host under
/// a lock and renamed when complete.
std::shared_ptr<const TokenFile> tokens_of(const std::vector<std::filesystem::path>& sources,
                                           const Tokenizer& tokenizer,
                                           const TokenizeOptions& options,
                                           TokenizeStats* stats = nullptr);

}  // namespace tessera::data

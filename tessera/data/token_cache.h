// SPDX-License-Identifier: Apache-2.0
// The cache of token files: <cache>/tokens/<key>/{tokens.bin, tokens.idx, about.json}.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/token_file.h"

namespace tessera::data {

/// An open token file and its origin.
struct OpenedTokens {
  std::shared_ptr<const TokenFile> file;
  std::string fingerprint;  ///< of the contents; independent of the files' location
  TokenizeStats stats;
  bool from_text = false;  ///< ids come from tessera's tokenizer
};

/// The same as tokens_of(). The key is a hash of every file's kind and contents, the tokenizer, the
/// field and the UTF-8 policy; names and times do not count. A truncated entry is detected and
/// rebuilt. If the cache folder cannot be written, .cache in the working directory is used
/// (reported once). A process that builds an entry removes entries unused for 30 days, oldest
/// first, until the others take 20 GB or less. If a source changes meanwhile, throws Error{Data}
/// and keeps no entry.
OpenedTokens open_tokens(const std::vector<std::filesystem::path>& sources,
                         const text::Tokenizer& tokenizer,
                         const TokenizeOptions& options);

/// Limits of what remains in a cache folder.
struct CacheLimit {
  std::uintmax_t bytes = std::uintmax_t{20'000'000'000};
  /// Entries used within this time always remain.
  std::chrono::hours unused = std::chrono::days(30);
};
/// Removes entries beyond the limit, the longest unused first. An entry under construction remains,
/// and a process that has an entry open keeps it. Errors are ignored, because the cache must not
/// cause failures.
void evict(const std::filesystem::path& folder, const CacheLimit& limit) noexcept;

}  // namespace tessera::data

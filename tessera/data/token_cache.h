// SPDX-License-Identifier: Apache-2.0
// Token files made once: <cache>/tokens/<key>/{tokens.bin, tokens.idx, about.json}.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/token_file.h"

namespace tessera::data {

/// An open token file and what it was made of.
struct OpenedTokens {
  std::shared_ptr<const TokenFile> file;
  std::string fingerprint;  ///< of the contents: the same wherever the files lie
  TokenizeStats stats;
  bool from_text = false;  ///< ids come from our own tokenizer
};

/// As tokens_of(). The key is a hash of every file's kind and contents, the tokenizer, the field
/// and the UTF-8 policy; neither names nor times count. An entry that is cut short is noticed and
/// made anew. Where the cache folder cannot be written, .cache in the working directory takes its
/// place (said once). Whoever makes an entry removes what nobody has used for 30 days, oldest
/// first, until the others have 20 GB or less. Error{Data}, and no entry, where a source is changed
/// or replaced meanwhile.
OpenedTokens open_tokens(const std::vector<std::filesystem::path>& sources,
                         const Tokenizer& tokenizer,
                         const TokenizeOptions& options);

/// What may stay in a folder of entries.
struct CacheLimit {
  std::uintmax_t bytes = std::uintmax_t{20'000'000'000};
  std::chrono::hours unused = std::chrono::days(30);  ///< what was used since stays in any case
};
/// Removes entries beyond the limit, the longest unused first. One that is being made stays, and
/// who has one open keeps it. Whatever cannot be removed stays: a cache is no place for errors.
void evict(const std::filesystem::path& folder, const CacheLimit& limit) noexcept;

}  // namespace tessera::data

// SPDX-License-Identifier: Apache-2.0
// Token files made once: <cache>/tokens/<key>/{tokens.bin, tokens.idx, about.json}.
#pragma once

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
/// place (said once).
OpenedTokens open_tokens(const std::vector<std::filesystem::path>& sources,
                         const Tokenizer& tokenizer,
                         const TokenizeOptions& options);

}  // namespace tessera::data

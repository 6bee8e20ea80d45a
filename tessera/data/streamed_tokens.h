// SPDX-License-Identifier: Apache-2.0
// The tokens of texts that are tokenized while they are used, for data of which no tokenized copy
// fits on a disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/held_files.h"
#include "tessera/data/sources.h"
#include "tessera/data/token_file.h"
#include "tessera/text/tokenizer.h"

namespace tessera::data {

struct StreamedTokensOptions {
  std::int64_t window = 1;  ///< the tokens of 2 * window files are in memory
  /// Number of tokens at the beginning of each file that always are in memory, so that a sample
  /// that begins near the end of a file does not need another file.
  std::int64_t head = 0;
  /// Called for each file while files are counted, with the path and the tokens; may be empty.
  std::function<void(const std::string& path, const TokenFile& tokens)> check;
};

/// The joined stream of text files, with the same tokens and sequences as the token file that
/// tokenize() would write. Const methods can be called from any thread; a thread waits while
/// another one tokenizes a file. Memory: the heads and 80 bytes a file besides the files that are
/// held, each with 2 or 4 bytes a token.
class StreamedTokens final : public TokenFile {
 public:
  /// Tokenizes every file once, to count its tokens. `tokenizer` must outlive this. Throws
  /// Error{Data} for text that cannot be read, for token files and if there is no text at all.
  StreamedTokens(const std::vector<std::filesystem::path>& sources,
                 const text::Tokenizer& tokenizer,
                 const TokenizeOptions& how,
                 const StreamedTokensOptions& options);

  [[nodiscard]] std::int64_t tokens() const override { return token_begins_.back(); }
  [[nodiscard]] std::int64_t sequences() const override { return sequence_begins_.back(); }
  [[nodiscard]] std::int64_t sequence_begin(std::int64_t index) const override;
  [[nodiscard]] std::int64_t sequence_length(std::int64_t index) const override;
  /// Throws Error{Data} if a file has changed since the constructor read it.
  void read(std::int64_t begin, std::int64_t count, std::int64_t* out) const override;
  /// Does nothing: the ids are the tokenizer's.
  void check_ids(std::int64_t vocab, const std::function<void()>& poll) const override;

  /// The first token of each file, and the end of the last file.
  [[nodiscard]] const std::vector<std::int64_t>& token_begins() const { return token_begins_; }
  /// The first sequence of each file, and the end of the last file.
  [[nodiscard]] const std::vector<std::int64_t>& sequence_begins() const {
    return sequence_begins_;
  }
  [[nodiscard]] const TokenizeStats& stats() const { return stats_; }
  /// A hash of the contents of all files and of the tokenizer.
  [[nodiscard]] std::string fingerprint() const;

 private:
  struct File {
    Source source;
    std::uint64_t hash = 0;  ///< of its bytes
    std::vector<std::int32_t> head;
    bool ends = false;  ///< an end of text follows it, because there is a later document
  };
  class Held;
  [[nodiscard]] std::shared_ptr<const Held> tokenized(const File& file, TokenizeStats* stats) const;
  [[nodiscard]] std::shared_ptr<const Held> opened(std::size_t file) const;
  /// Copies tokens [begin, begin + count) of one file.
  void read_file(std::size_t file, std::int64_t begin, std::int64_t count, std::int64_t* out) const;

  const text::Tokenizer& tokenizer_;
  TokenizeOptions how_;
  std::int64_t window_;
  std::vector<File> files_;
  std::vector<std::int64_t> token_begins_ = {0}, sequence_begins_ = {0};
  TokenizeStats stats_;

  mutable HeldFiles<Held> held_;
};

}  // namespace tessera::data

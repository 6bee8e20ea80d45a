// SPDX-License-Identifier: Apache-2.0
// Documents of sentences in tokens, for tasks whose samples begin and end with sentences.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/philox.h"
#include "tessera/data/token_file.h"
#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

/// All sentences of some files, one after the other.
struct Sentences {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> begins = {0};  ///< of each sentence, and the end of the last
  /// The number of tokens of the sentences [first, last).
  [[nodiscard]] std::int64_t tokens_of(std::int64_t first, std::int64_t last) const {
    return begins[static_cast<std::size_t>(last)] - begins[static_cast<std::size_t>(first)];
  }
};
/// Successive sentences [first, last): a document.
using SentenceRange = std::pair<std::int64_t, std::int64_t>;

/// Reads and tokenizes text files, in which a line is a sentence and blank lines separate
/// documents, and .jsonl files, in which the lines of each text are the sentences of a document;
/// reads token files, whose sequences are sentences. Appends to `sentences` and `documents`. Throws
/// Error{Data} with file and line for text that cannot be read, and for a token file without
/// documents or with an id that the tokenizer does not have.
data::TokenizeStats read_sentences(const std::vector<std::string>& names,
                                   const text::Tokenizer& tokenizer,
                                   const data::TokenizeOptions& how,
                                   Sentences& sentences,
                                   std::vector<SentenceRange>& documents);

/// The files of `names` that read_sentences() reads, one by one. Throws Error{Data} as
/// data::expand_sources().
std::vector<std::string> sentence_files(const std::vector<std::string>& names);

/// Random numbers of a document, one after the other.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t document) : random_{seed}, document_(document) {}
  /// Draws a number in (0, 1].
  double share() {
    const Philox::Block words = random_(next_++, document_);
    return uniform_double(words[0], words[1]);
  }
  bool half() { return share() <= 0.5; }
  /// From 0 to bound - 1.
  std::int64_t below(std::int64_t bound) {
    const Philox::Block words = random_(next_++, document_);
    const std::uint64_t bits = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
    return static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(bound));
  }

 private:
  Philox random_;
  std::uint64_t document_, next_ = 0;
};

}  // namespace tessera::tasks

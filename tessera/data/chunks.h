// SPDX-License-Identifier: Apache-2.0
// Tokenization in chunks that threads process in any order and that are written in order.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/data/sources.h"
#include "tessera/data/token_file.h"
#include "tessera/data/token_writer.h"
#include "tessera/text/tokenizer.h"

namespace tessera::data {

/// A range of one file: whole lines of a .jsonl, or a part of a .txt between two safe cuts.
struct Chunk {
  const Source* source = nullptr;
  std::shared_ptr<const SourceText> file;
  std::size_t begin = 0, end = 0;  ///< in bytes of the file
  bool continues = false;          ///< continues the document of the previous chunk
  /// File bytes that this chunk completes, including a byte order mark.
  std::size_t file_bytes = 0;
  [[nodiscard]] std::string_view text() const { return file->text().substr(begin, end - begin); }
};

/// Splits the sources into chunks, from left to right. The result depends only on the files.
class Chunker {
 public:
  /// `text_field`: the field of records that is read.
  Chunker(const std::vector<Source>& sources,
          const text::Tokenizer& tokenizer,
          std::string text_field)
      : sources_(sources), tokenizer_(tokenizer), text_field_(std::move(text_field)) {}
  /// Returns false at the end.
  bool next(Chunk& chunk);
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

 private:
  [[nodiscard]] std::size_t end_of(std::string_view text, std::size_t begin) const;
  const std::vector<Source>& sources_;
  const text::Tokenizer& tokenizer_;
  std::string text_field_;
  std::size_t source_ = 0, at_ = 0;
  bool started_ = false;
  std::shared_ptr<const SourceText> file_;
};

/// The result of a chunk. Its documents are joined with end of text; the writer adds the joints
/// before the first and after the last of them.
struct Encoded {
  std::vector<std::byte> tokens;  ///< in the file format
  std::vector<std::int64_t>
      lengths;  ///< lengths of the documents; the joining token belongs to the document before it
  bool continues = false;
  std::int64_t bytes = 0, skipped_empty = 0, replaced_utf8 = 0;
  std::exception_ptr error;  ///< if set, the other fields are invalid
};

/// Never throws; `error` holds any exception. Each thread needs its own encoder.
class ChunkEncoder {
 public:
  ChunkEncoder(const text::Tokenizer& tokenizer, const TokenizeOptions& options, TokenWidth width)
      : tokenizer_(tokenizer), options_(options), width_(width) {}
  Encoded encode(const Chunk& chunk);

 private:
  std::string_view checked_utf8(const Chunk& chunk, Encoded& out);
  void encode_text(const Chunk& chunk, Encoded& out);
  void encode_lines(const Chunk& chunk, Encoded& out);
  void add_document(std::string_view text, Encoded& out);

  const text::Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  TokenWidth width_;
  std::string clean_, unix_, field_;  // scratch
  std::vector<std::int32_t> ids_;
};

/// Tokenizes the files into `sink`, with an end of text between two documents. Works in parallel;
/// the result does not depend on the number of threads. Throws Error{Data} with file:line:byte for
/// text that cannot be read.
TokenizeStats tokenize_into(TokenSink& sink,
                            const std::vector<Source>& files,
                            const text::Tokenizer& tokenizer,
                            const TokenizeOptions& options);

}  // namespace tessera::data

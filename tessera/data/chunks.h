// SPDX-License-Identifier: Apache-2.0
// Tokenizing in pieces that threads take in any order and that are written in one.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include "tessera/data/sources.h"
#include "tessera/data/token_file.h"
#include "tessera/data/token_writer.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

/// A stretch of one file: whole lines of a .jsonl, or a part of a .txt between two safe cuts.
struct Chunk {
  const Source* source = nullptr;
  std::shared_ptr<const files::Mapped> file;
  std::size_t begin = 0, end = 0;  ///< in the file's bytes
  bool continues = false;          ///< goes on with the document of the chunk before
  std::size_t file_bytes = 0;      ///< that are done with this chunk, a byte order mark included
  [[nodiscard]] std::string_view text() const { return file->text().substr(begin, end - begin); }
};

/// Cuts the sources into chunks, from left to right. What it gives depends on the files alone.
class Chunker {
 public:
  Chunker(const std::vector<Source>& sources, const Tokenizer& tokenizer)
      : sources_(sources), tokenizer_(tokenizer) {}
  /// False at the end.
  bool next(Chunk& chunk);
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

 private:
  [[nodiscard]] std::size_t end_of(std::string_view text, std::size_t begin) const;
  const std::vector<Source>& sources_;
  const Tokenizer& tokenizer_;
  std::size_t source_ = 0, at_ = 0;
  bool started_ = false;
  std::shared_ptr<const files::Mapped> file_;
};

/// What a chunk became. Its documents are joined with end of text; what stands before the first and
/// after the last of them is the writer's to join.
struct Encoded {
  std::vector<std::byte> tokens;  ///< in the file's form
  std::vector<std::int64_t>
      lengths;  ///< of documents, the joining token counted with the one before it
  bool continues = false;
  std::int64_t bytes = 0, skipped_empty = 0, replaced_utf8 = 0;
  std::exception_ptr error;  ///< then nothing else counts
};

/// Never throws: what goes wrong is in `error`. One encoder a thread.
class ChunkEncoder {
 public:
  ChunkEncoder(const Tokenizer& tokenizer, const TokenizeOptions& options, TokenWidth width)
      : tokenizer_(tokenizer), options_(options), width_(width) {}
  Encoded encode(const Chunk& chunk);

 private:
  std::string_view checked_utf8(const Chunk& chunk, Encoded& out);
  void encode_text(const Chunk& chunk, Encoded& out);
  void encode_lines(const Chunk& chunk, Encoded& out);
  void add_document(std::string_view text, Encoded& out);

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  TokenWidth width_;
  std::string clean_, unix_, field_;  // scratch
  std::vector<std::int32_t> ids_;
};

}  // namespace tessera::data

// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/chunks.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/budget.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/json_line.h"

namespace tessera::data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// "file:line:byte", both counted from 1, for byte `offset` of `text`, which begins at byte `before`
// of the file.
std::string place_of(const Chunk& chunk, std::string_view text, std::size_t offset) {
  const std::string_view earlier = chunk.file->text().substr(0, chunk.begin);
  const std::string_view here = text.substr(0, offset);
  const auto lines =
      std::count(earlier.begin(), earlier.end(), '\n') + std::count(here.begin(), here.end(), '\n');
  std::size_t column = 0;
  if (const std::size_t newline = here.rfind('\n'); newline != std::string_view::npos) {
    column = here.size() - newline;
  } else {
    const std::size_t start = earlier.rfind('\n');
    column = here.size() + earlier.size() - (start == std::string_view::npos ? 0 : start + 1) + 1;
  }
  return fmt::format("{}:{}:{}", chunk.source->path.string(), lines + 1, column);
}

std::int64_t count_of(std::string_view text, std::string_view what) {
  std::int64_t count = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos;
       at = text.find(what, at + what.size()))
    ++count;
  return count;
}

// Converts Windows line ends to Unix line ends. Copies only if there are any.
std::string_view with_unix_lines(std::string_view text, std::string& scratch) {
  std::size_t at = text.find("\r\n");
  if (at == std::string_view::npos) return text;
  scratch.clear();
  scratch.reserve(text.size());
  std::size_t begin = 0;
  for (; at != std::string_view::npos; at = text.find("\r\n", begin)) {
    scratch.append(text, begin, at - begin);
    begin = at + 1;  // the newline is kept
  }
  scratch.append(text, begin);
  return scratch;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

bool Chunker::next(Chunk& chunk) {
  for (; source_ < sources_.size(); ++source_, file_.reset()) {
    const Source& source = sources_[source_];
    if (!file_) {
      file_ = std::make_shared<const SourceText>(source, text_field_);
      at_ = file_->text().size() - without_bom(file_->text()).size();
      started_ = false;
    }
    const std::string_view text = file_->text();
    if (at_ == text.size() && started_) continue;
    chunk.source = &source;
    chunk.file = file_;
    chunk.begin = at_;
    chunk.end = at_ = end_of(text, at_);
    chunk.file_bytes = chunk.end - (started_ ? chunk.begin : 0);
    chunk.continues = started_ && source.kind == Source::Kind::Text;
    started_ = true;
    return true;
  }
  return false;
}

std::size_t Chunker::end_of(std::string_view text, std::size_t begin) const {
  if (text.size() - begin <= kChunkBytes) return text.size();
  const std::size_t from = begin + kChunkBytes;
  const bool lines = sources_[source_].kind != Source::Kind::Text;
  const std::size_t newline = lines ? text.find('\n', from) : tokenizer_.cut(text, from);
  const std::size_t end =
      newline == std::string_view::npos ? text.size() : newline + (lines ? 1 : 0);
  // Before `from` the chunk may have other lines.
  if (end - from > budget::kLineBytes)
    budget::require_bytes(
        end - from,
        budget::kLineBytes,
        fmt::format("{}: from byte {} on", sources_[source_].path.string(), from),
        lines ? "a line" : "a stretch without white space",
        lines ? "write one record a line" : "put white space between words, or leave the file out");
  return end;
}

Encoded ChunkEncoder::encode(const Chunk& chunk) {
  Encoded out;
  out.continues = chunk.continues;
  out.bytes = static_cast<std::int64_t>(chunk.file_bytes);
  try {
    if (chunk.source->kind == Source::Kind::Text) {
      encode_text(chunk, out);
    } else {
      encode_lines(chunk, out);
    }
  } catch (...) {
    out.error = std::current_exception();
  }
  return out;
}

std::string_view ChunkEncoder::checked_utf8(const Chunk& chunk, Encoded& out) {
  const std::string_view text = chunk.text();
  const auto bad = text::find_invalid_utf8(text);
  if (!bad) return text;
  TESSERA_REQUIRE(
      options_.invalid_utf8 == "replace",
      Data,
      fmt::format("{}: byte 0x{:02X} is not valid UTF-8 (byte {} of the file)",
                  place_of(chunk, text, *bad),
                  static_cast<unsigned char>(text[*bad]),
                  chunk.begin + *bad),
      "convert the file (iconv -f WINDOWS-1252 -t UTF-8), or set data.invalid_utf8 to \"replace\"");
  clean_ = text::replace_invalid_utf8(text);
  out.replaced_utf8 += count_of(clean_, kReplacement) - count_of(text, kReplacement);
  return clean_;
}

void ChunkEncoder::encode_text(const Chunk& chunk, Encoded& out) {
  const std::string_view text = with_unix_lines(checked_utf8(chunk, out), unix_);
  add_document(text, out);
}

void ChunkEncoder::encode_lines(const Chunk& chunk, Encoded& out) {
  const std::string_view text = checked_utf8(chunk, out);
  const bool replace = options_.invalid_utf8 == "replace";
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (is_blank(line)) {
      ++out.skipped_empty;
    } else {
      const auto problem =
          read_text_field(line, options_.text_field, replace, field_, out.replaced_utf8);
      if (problem) {
        throw Error(
            Error::Kind::Data,
            fmt::format("{}: {}", place_of(chunk, text, begin + problem->offset), problem->what),
            problem->fix.empty() ? "write one JSON object a line" : problem->fix);
      }
      add_document(field_, out);
    }
    begin = end + 1;
  }
}

void ChunkEncoder::add_document(std::string_view text, Encoded& out) {
  if (text.empty()) {
    ++out.skipped_empty;
    return;
  }
  ids_.clear();
  if (!out.lengths.empty()) {
    ids_.push_back(tokenizer_.end_of_text());
    ++out.lengths.back();
  }
  const std::size_t joint = ids_.size();
  tokenizer_.encode(text, ids_);
  out.lengths.push_back(static_cast<std::int64_t>(ids_.size() - joint));
  append_tokens(ids_, width_, out.tokens);
}

}  // namespace tessera::data

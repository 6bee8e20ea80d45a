// SPDX-License-Identifier: Apache-2.0
// Resolves a list of data sources to files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/files.h"
#include "tessera/data/slices.h"

namespace tessera::data {

/// A file with texts: one document, one per line of JSON, or one per record of a table. The first
/// two may be compressed with gzip or zstd.
struct Source {
  enum class Kind : std::uint8_t { Text, Lines, Records };
  std::filesystem::path path;
  Kind kind;
  std::string format = {};  ///< of Records: its name in record_formats()
  /// The records of which the source consists, of Text the lines; empty: all.
  std::optional<RecordRange> range = std::nullopt;
};

/// The contents of a source, decompressed, and as lines of JSON if it has records.
class SourceText {
 public:
  /// `text_field`: the field of records that is read. Throws Error{Data} for contents that cannot
  /// be read, with the place. Memory: none for plain files; else the decompressed contents, and for
  /// records the texts besides.
  SourceText(const Source& source, const std::string& text_field);
  SourceText(const SourceText&) = delete;
  SourceText& operator=(const SourceText&) = delete;
  [[nodiscard]] std::string_view text() const { return text_; }

 private:
  std::shared_ptr<const files::Mapped> file_;
  std::string kept_;
  std::string_view text_;
};

/// The files of `paths` in order, which may be patterns such as "texts/*.md"; a folder contributes
/// its .txt, .jsonl, parquet, arrow and compressed files and those of its subfolders, in byte order
/// of paths, without compressed copies of the others. A slice behind a path (slices.h) is one of
/// the records of all its files, of a text one of its lines. A warning counts other files by their
/// endings; hidden files and folders are ignored, and links to folders are not followed. Throws
/// Error{Data} for something missing, unreadable, of another kind, or without such a file; throws
/// Error{Io} if a limit or the disk prevents opening a folder.
std::vector<Source> expand_sources(const std::vector<std::filesystem::path>& paths);

/// The paths that match a pattern with *, ? and [...], in byte order. Throws Error{Data} if there
/// is none.
std::vector<std::string> matches_of(const std::string& pattern);

/// True if `path` names a .bin/.idx pair: by either name, or by a prefix that is not itself a file
/// or folder.
bool names_token_file(const std::filesystem::path& path);

/// Throws Error{Data} for a missing file or folder, and suggests the nearest name.
[[noreturn]] void refuse_missing(const std::filesystem::path& path);

/// Throws Error{Data} for a source that is a slice, for readers of whole files.
void refuse_range(const Source& source);

/// Throws Error{Data} for a link to a file that does not exist, which would otherwise be missing in
/// a folder's data without a word.
void refuse_dangling(const std::filesystem::path& path);

/// Throws Error{Data} for a file with a hole, whose zeros are not text and may be of any number.
void refuse_hole(const std::filesystem::path& path);

/// Maps the file. Throws Error{Data} if it is missing or must not be read, and Error{Io} if a limit
/// of this process or the disk is the cause.
std::shared_ptr<const files::Mapped> map_source(const std::filesystem::path& path);

/// The text without a byte order mark.
std::string_view without_bom(std::string_view text);

}  // namespace tessera::data

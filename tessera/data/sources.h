// SPDX-License-Identifier: Apache-2.0
// Which files a list of data sources means.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/files.h"

namespace tessera::data {

/// A file of text: one document, or one a line.
struct Source {
  enum class Kind : std::uint8_t { Text, Lines };
  std::filesystem::path path;
  Kind kind;
};

/// The files of `paths` in order; a folder stands for its .txt and .jsonl files by byte order of
/// names (others and subfolders are not looked at). Error{Data} for what is missing, unreadable, of
/// another kind, or has no such file; Error{Io} for a folder that a limit or the disk keeps closed.
std::vector<Source> expand_sources(const std::vector<std::filesystem::path>& paths);

/// Whether `path` names a .bin/.idx pair: by either name, or by a prefix that is no file or folder
/// itself.
bool names_token_file(const std::filesystem::path& path);

/// Throws Error{Data} for a file or folder that is not there, with the nearest name.
[[noreturn]] void refuse_missing(const std::filesystem::path& path);

/// The mapped file. Error{Data} if it is not there or may not be read; Error{Io} if a limit of this
/// process or the disk is why it cannot.
std::shared_ptr<const files::Mapped> map_source(const std::filesystem::path& path);

/// The text without a byte order mark.
std::string_view without_bom(std::string_view text);

}  // namespace tessera::data

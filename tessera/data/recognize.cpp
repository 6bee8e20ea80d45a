// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/recognize.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/data/records.h"
#include "tessera/data/text_encoding.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLook = 65536;

/// Formats by their first bytes. `fix`: {0} is the file.
struct Format {
  std::string_view magic, what, fix;
};
const std::array<Format, 9>& formats() {
  using std::string_view_literals::operator""sv;
  static const std::array<Format, 9> all = {
      {{"\xfd\x37zXZ\x00"sv, "compressed (xz)", "xz -dk {0}"},
       {"BZh"sv, "compressed (bzip2)", "bunzip2 -k {0}"},
       {"PK\x03\x04"sv, "an archive (zip)", "unzip {0}, and name the folder"},
       {"\x89PNG"sv, "a picture", "set \"task\": \"image_classify\""},
       {"\xff\xd8\xff"sv, "a picture", "set \"task\": \"image_classify\""},
       {"%PDF-"sv, "a PDF document", "pdftotext {0}"},
       {"SQLite format 3"sv, "a database", "export its texts to a .jsonl file"},
       {kFeather1, "a table (Feather version 1)", kFeather1Fix},
       {"GGUF"sv, "a model", "name it in model.from"}}};
  return all;
}

[[noreturn]] void refuse(const fs::path& path, std::string_view what, std::string_view fix) {
  throw Error(Error::Kind::Data,
              fmt::format("{} is {}, not text", path.string(), what),
              fmt::format(fmt::runtime(fix), path.string()));
}

bool is_object_line(std::string_view line) {
  try {
    return json::parse_strict(line, "data").is_object();
  } catch (const Error&) {
    return false;
  }
}

/// The first line that is not blank.
std::string_view first_line(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text::trim(text.substr(0, end));
    if (!line.empty()) return line;
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return {};
}

/// "a.txt" of "a.txt.gz".
fs::path without_compression(const fs::path& path) {
  const std::string extension = text::lower(path.extension().string());
  for (const std::string_view ending : {".gz", ".gzip", ".zst", ".zstd"}) {
    if (extension == ending) return fs::path(path).replace_extension();
  }
  return path;
}

/// The format of records that the contents or the name say; empty: another one.
std::string format_of(std::string_view head, const std::string& extension) {
  using std::string_view_literals::operator""sv;
  if (head.starts_with("PAR1"sv)) return "parquet";
  if (head.starts_with("ARROW1"sv) || head.starts_with("\xff\xff\xff\xff"sv)) return "arrow";
  if (extension == ".csv" || extension == ".tsv") return extension.substr(1);
  const std::string_view line = first_line(head);
  const bool text = extension == ".txt" || extension == ".jsonl";
  const bool array = line.starts_with('[') && (extension == ".json" || line.size() == 1 ||
                                               line.find('{') != std::string_view::npos);
  return array && !text ? "json" : "";
}

}  // namespace

Source recognize(const fs::path& path) {
  const auto mapped = map_source(path);
  const std::string inner = text::lower(without_compression(path).extension().string());
  const bool packed =
      mapped->text().starts_with("\x1f\x8b") || mapped->text().starts_with("\x28\xb5\x2f\xfd");
  // Then nothing has to be decompressed in order to know it.
  if (packed && inner == ".txt") return {path, Source::Kind::Text};
  if (packed && inner == ".jsonl") return {path, Source::Kind::Lines};
  std::string kept;
  const std::string_view all = plain_text(mapped->text(), path.string(), kept);
  const std::string_view head = without_bom(all.substr(0, kLook));
  for (const Format& format : formats()) {
    if (head.starts_with(format.magic)) refuse(path, format.what, format.fix);
  }
  if (std::string format = format_of(head, inner); !format.empty())
    return {path, Source::Kind::Records, std::move(format)};
  if (inner == ".txt") return {path, Source::Kind::Text};
  if (inner == ".jsonl") return {path, Source::Kind::Lines};
  if (is_object_line(first_line(head))) return {path, Source::Kind::Lines};
  // One object over several lines.
  if (inner == ".json") return {path, Source::Kind::Records, "json"};
  const bool binary = head.find('\0') != std::string_view::npos;
  if (binary)
    refuse(path, "binary data of an unknown kind", "name text files, or a .bin/.idx pair");
  return {path, Source::Kind::Text};
}

}  // namespace tessera::data

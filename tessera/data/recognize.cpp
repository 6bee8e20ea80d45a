// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/recognize.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLook = 65536;

/// Formats by their first bytes. `fix`: {0} is the file, {1} the file without its last extension.
struct Format {
  std::string_view magic, what, fix;
};
constexpr std::string_view kPandas =
    "python3 -c 'import pandas; pandas.read_{2}(\"{0}\").to_json(\"{1}.jsonl\", "
    "orient=\"records\", "
    "lines=True)'";
const std::array<Format, 12>& formats() {
  using std::string_view_literals::operator""sv;
  static const std::array<Format, 12> all = {
      {{"PAR1"sv, "a parquet file", "parquet"},
       {"ARROW1"sv, "an arrow file", "feather"},
       {"\x1f\x8b"sv, "compressed (gzip)", "gunzip -k {0}"},
       {"\x28\xb5\x2f\xfd"sv, "compressed (zstd)", "zstd -d {0}"},
       {"\xfd\x37zXZ\x00"sv, "compressed (xz)", "xz -dk {0}"},
       {"BZh"sv, "compressed (bzip2)", "bunzip2 -k {0}"},
       {"PK\x03\x04"sv, "an archive (zip)", "unzip {0}, and name the folder"},
       {"\x89PNG"sv, "a picture", "set \"task\": \"image_classify\""},
       {"\xff\xd8\xff"sv, "a picture", "set \"task\": \"image_classify\""},
       {"%PDF-"sv, "a PDF document", "pdftotext {0}"},
       {"SQLite format 3"sv, "a database", "export its texts to a .jsonl file"},
       {"GGUF"sv, "a model", "name it in model.from"}}};
  return all;
}

std::string command(std::string_view fix, const fs::path& path) {
  fs::path without = path;
  without.replace_extension();
  const bool table = fix == "parquet" || fix == "feather" || fix == "csv";
  return fmt::format(fmt::runtime(table ? kPandas : fix), path.string(), without.string(), fix);
}

[[noreturn]] void refuse(const fs::path& path, std::string_view what, std::string_view fix) {
  throw Error(Error::Kind::Data,
              fmt::format("{} is {}, not text", path.string(), what),
              command(fix, path));
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

}  // namespace

Source::Kind recognize(const fs::path& path) {
  const auto mapped = map_source(path);
  const std::string_view head = without_bom(mapped->text().substr(0, kLook));
  for (const Format& format : formats()) {
    if (head.starts_with(format.magic)) refuse(path, format.what, format.fix);
  }
  const std::string extension = text::lower(path.extension().string());
  if (extension == ".txt") return Source::Kind::Text;
  if (extension == ".jsonl") return Source::Kind::Lines;
  if (extension == ".csv" || extension == ".tsv") refuse(path, "a table", "csv");
  const std::string_view line = first_line(head);
  if (line.starts_with('[') &&
      (extension == ".json" || line.size() == 1 || line.find('{') != std::string_view::npos)) {
    refuse(path,
           "one JSON array",
           "python3 -c 'import json; [print(json.dumps(x)) for x in json.load(open(\"{0}\"))]' > "
           "{1}.jsonl");
  }
  if (is_object_line(line)) return Source::Kind::Lines;
  if (extension == ".json") {
    refuse(path,
           "one JSON value",
           "write one JSON object a line, with the field that data.text_field names, to a .jsonl "
           "file");
  }
  const bool binary = head.find('\0') != std::string_view::npos;
  if (binary)
    refuse(path, "binary data of an unknown kind", "name text files, or a .bin/.idx pair");
  return Source::Kind::Text;
}

}  // namespace tessera::data

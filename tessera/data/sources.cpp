// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/sources.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <unistd.h>

#include "tessera/base/bounded_file.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/data/recognize.h"
#include "tessera/data/records.h"
#include "tessera/data/text_encoding.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

std::optional<Source::Kind> kind_of(const fs::path& path) {
  const std::string extension = text::lower(path.extension().string());
  if (extension == ".txt") return Source::Kind::Text;
  if (extension == ".jsonl") return Source::Kind::Lines;
  return std::nullopt;
}

/// True for names of files that contain texts in another form.
bool is_packed(const fs::path& path) {
  const std::string extension = text::lower(path.extension().string());
  for (const std::string_view ending : {".gz", ".zst", ".parquet", ".arrow"})
    if (extension == ending) return true;
  return false;
}

bool may_be_read(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) &&
         ::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0;
}

/// Writes one field of every record as a line of JSON.
class TextColumn {
 public:
  TextColumn(const std::string& file, const std::string& field, std::string& out)
      : file_(file), field_(field), out_(out) {}
  void add(const json::Value& record, std::int64_t line) const {
    const json::Value* const text = record.is_object() ? record.find(field_) : nullptr;
    if (text == nullptr || (!text->is_string() && !text->is_null())) {
      std::vector<std::string> names;
      if (record.is_object()) {
        for (const auto& [name, value] : record.members())
          names.push_back(name);
      }
      throw Error(Error::Kind::Data,
                  fmt::format("{}:{}: the record has no text \"{}\"", file_, line, field_),
                  names.empty() ? "write one object a record"
                                : fmt::format("set data.text_field; the record has {}",
                                              text::join_some(names, ", ")));
    }
    if (text->is_string()) out_ += json::Value::object({{field_, *text}}).dump();
    out_ += '\n';
  }

 private:
  const std::string& file_;
  const std::string& field_;
  std::string& out_;
};

/// "a.txt" of "a.txt.gz".
fs::path unpacked(const fs::path& path) {
  const std::string extension = text::lower(path.extension().string());
  return extension == ".gz" || extension == ".zst" ? fs::path(path).replace_extension() : path;
}

/// Says which files of a folder are not read, by their endings.
void tell_unread(const fs::path& folder, const std::map<std::string, std::int64_t>& endings) {
  if (endings.empty()) return;
  std::vector<std::string> parts;
  for (const auto& [ending, count] : endings)
    parts.push_back(fmt::format("{} {}", count, ending));
  log::warn_once(fmt::format(
      "the folder {}: not read are {}; name them, or a pattern such as \"{}\", to read them",
      folder.string(),
      text::join_some(parts, ", "),
      (folder / "*.md").string()));
}

/// The files of a folder and its subfolders, by what they are to tessera.
struct FolderFiles {
  std::vector<Source> plain;
  std::vector<fs::path> packed;
  std::map<std::string, std::int64_t> unread;  ///< by ending
};

/// Adds a folder's files. Links to folders are not followed, and hidden files and folders are left
/// out.
void collect(const fs::path& folder, FolderFiles& out) {
  std::error_code reason;
  fs::directory_iterator it(folder, reason);
  if (reason) {
    const bool denied = reason == std::errc::permission_denied;
    throw Error(denied ? Error::Kind::Data : Error::Kind::Io,
                fmt::format("cannot read the folder {}: {}", folder.string(), reason.message()),
                denied ? "check its permissions"
                       : "check its disk, and the limit on open files (ulimit -n)");
  }
  std::vector<fs::path> inner;
  for (const auto& entry : it) {
    if (entry.path().filename().string().starts_with('.')) continue;  // such as ._a.txt of macOS
    if (entry.is_directory(reason) && !entry.is_symlink(reason)) inner.push_back(entry.path());
    if (!entry.is_regular_file(reason)) {
      if (kind_of(entry.path()) || is_packed(entry.path())) refuse_dangling(entry.path());
      continue;
    }
    if (const auto kind = kind_of(entry.path())) {
      out.plain.push_back({entry.path(), *kind});
    } else if (is_packed(entry.path())) {
      out.packed.push_back(entry.path());
    } else {
      const std::string ending = entry.path().extension().string();
      ++out.unread[ending.empty() ? "without an ending" : ending];
    }
  }
  it = {};  // a deep tree must not hold a file open for each of its levels
  for (const fs::path& next : inner)
    collect(next, out);
}

std::vector<Source> files_of(const fs::path& folder) {
  FolderFiles files;
  collect(folder, files);
  std::vector<Source>& found = files.plain;
  std::set<fs::path> names;
  for (const Source& source : found)
    names.insert(source.path);
  for (const fs::path& path : files.packed) {
    const fs::path plain = unpacked(path);
    const bool copied = plain != path && names.contains(plain);
    if (!copied) found.push_back(recognize(path));
  }
  TESSERA_REQUIRE(!found.empty(),
                  Data,
                  fmt::format("no .txt, .jsonl, .parquet, .gz or .zst file in the folder {} and "
                              "its subfolders",
                              folder.string()),
                  "name a folder with text files in it");
  tell_unread(folder, files.unread);
  std::sort(found.begin(), found.end(), [](const Source& a, const Source& b) {
    return a.path.native() < b.path.native();
  });
  return std::move(found);
}

/// Calls take(line, rest) for each line, with its newline; `rest` is the text from the line on.
/// Ends early if take() returns false.
template <class Take>
void for_each_line_of(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    const std::size_t size = newline == std::string_view::npos ? text.size() : newline + 1;
    if (!take(text.substr(0, size), text)) return;
    text.remove_prefix(size);
  }
}

bool is_record_line(const Source& source, std::string_view line) {
  return source.kind == Source::Kind::Text ||
         line.find_first_not_of(" \t\r\n") != std::string_view::npos;
}

/// The number of records of a source, or of the lines of a text.
std::int64_t records_of(const Source& source) {
  const std::string name = source.path.string();
  if (source.kind == Source::Kind::Records) return count_records(name);
  const auto file = map_source(source.path);
  std::string kept;
  const std::string_view text = without_bom(plain_text(file->text(), name, kept));
  std::int64_t count = 0;
  for_each_line_of(text, [&](std::string_view line, std::string_view /*rest*/) {
    count += is_record_line(source, line) ? 1 : 0;
    return true;
  });
  return count;
}

/// The lines of a range. Lines of JSON before it are kept as empty ones, so that messages have the
/// numbers of the file.
std::string lines_of(const Source& source, std::string_view text) {
  std::string before;
  std::int64_t number = 0;
  std::size_t begin = text.size(), end = text.size();
  for_each_line_of(text, [&](std::string_view line, std::string_view rest) {
    const std::size_t at = text.size() - rest.size();
    if (is_record_line(source, line)) {
      if (number == source.range->begin) begin = at;
      if (number == source.range->end) end = at;
      ++number;
    }
    if (begin == text.size() && source.kind == Source::Kind::Lines) before += '\n';
    return end == text.size();
  });
  begin = std::min(begin, end);
  return before + std::string(text.substr(begin, end - begin));
}

/// The sources that hold a slice of the records of all of them.
std::vector<Source> sliced(std::vector<Source> sources, const Slice& slice) {
  std::vector<RecordRange> ranges;  // of sources that are slices already, these
  std::int64_t all = 0;
  for (const Source& source : sources) {
    ranges.push_back(source.range ? *source.range
                                  : RecordRange{.begin = 0, .end = records_of(source)});
    all += ranges.back().end - ranges.back().begin;
  }
  const RecordRange range = range_of(slice, all);
  std::vector<Source> out;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const RecordRange own = ranges[i];
    const std::int64_t size = own.end - own.begin,
                       begin = std::max(range.begin - first, std::int64_t{0}),
                       end = std::min(range.end - first, size);
    first += size;
    if (begin >= end) continue;
    if (begin != 0 || end != size)
      sources[i].range = RecordRange{.begin = own.begin + begin, .end = own.begin + end};
    out.push_back(std::move(sources[i]));
  }
  return out;
}

}  // namespace

void refuse_range(const Source& source) {
  TESSERA_REQUIRE(
      !source.range,
      Data,
      fmt::format("a slice of {} is not read here, only all of it", source.path.string()),
      "leave out the brackets, or write the slice into a file of its own");
}

void refuse_missing(const fs::path& path) {
  std::vector<std::string> neighbours;
  std::error_code ignored;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    neighbours.push_back(entry.path().filename().string());
  const auto near = text::nearest(path.filename().string(), neighbours);
  throw Error(
      Error::Kind::Data,
      fmt::format("no such file or folder: {}", path.string()),
      near ? fmt::format("did you mean {}?", (path.parent_path() / *near).string())
           : fmt::format("relative paths are relative to {}", fs::current_path(ignored).string()));
}

void refuse_dangling(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_symlink(path, ignored) || fs::exists(path, ignored)) return;
  throw Error(Error::Kind::Data,
              fmt::format("{} is a link to {}, which does not exist",
                          path.string(),
                          fs::read_symlink(path, ignored).string()),
              "fetch the file that it names, or remove the link");
}

void refuse_hole(const fs::path& path) {
  const auto hole = files::first_hole(path);
  TESSERA_REQUIRE(!hole,
                  Data,
                  fmt::format("{} is sparse: from byte {} on it has zeros that are not stored, "
                              "which are not text",
                              path.string(),
                              *hole),
                  "fetch the file again, or name another one");
}

std::vector<Source> expand_sources(const std::vector<fs::path>& paths) {
  std::vector<Source> sources;
  for (const fs::path& path : paths) {
    std::error_code ignored;
    if (const SlicedName one = cut_slice(path.string()); one.slice) {
      TESSERA_REQUIRE(
          !names_token_file(one.name),
          Data,
          fmt::format("{}: a token file has no records of which a slice is read", path.string()),
          "leave out the brackets, or tokenize a smaller text");
      std::vector<Source> some = sliced(expand_sources({one.name}), *one.slice);
      std::move(some.begin(), some.end(), std::back_inserter(sources));
      continue;
    }
    const fs::file_status status = fs::status(path, ignored);
    const bool pattern = path.native().find_first_of("*?[") != std::string::npos;
    if (!fs::exists(status) && pattern && !names_token_file(path)) {
      for (const std::string& file : matches_of(path.string())) {
        refuse_dangling(file);
        if (fs::is_regular_file(file, ignored)) sources.push_back(recognize(file));
      }
      continue;
    }
    if (!fs::exists(status)) refuse_missing(path);
    if (fs::is_directory(status)) {
      const auto inside = files_of(path);
      sources.insert(sources.end(), inside.begin(), inside.end());
      continue;
    }
    TESSERA_REQUIRE(
        !names_token_file(path),
        Data,
        fmt::format("{} is a token file among other data", path.string()),
        "a .bin/.idx pair must be the only entry; tokenize the others, or name their text files");
    TESSERA_REQUIRE(
        fs::is_regular_file(status),
        Data,
        fmt::format("{} is neither a file nor a folder", path.string()),
        "name a text file, a .jsonl file (one JSON object a line), a folder of them, or a "
        ".bin/.idx pair");
    sources.push_back(recognize(path));
  }
  for (const Source& source : sources)
    refuse_hole(source.path);
  return sources;
}

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int failed = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> out;
  if (failed == 0) out.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  TESSERA_REQUIRE(!out.empty(),
                  Data,
                  fmt::format("no file matches {}", pattern),
                  "patterns know *, ? and [...], and are relative to the working directory");
  return out;
}

bool names_token_file(const fs::path& path) {
  const auto extension = path.extension();
  std::error_code ignored;
  if (extension == ".bin") {
    fs::path index = path;
    if (!fs::exists(path, ignored) || fs::exists(index.replace_extension(".idx"), ignored))
      return true;
    // Without an index the contents decide, which may be text.
    return map_source(path)->text().substr(0, 65536).find('\0') != std::string_view::npos;
  }
  if (extension == ".idx") return true;
  return !fs::exists(path, ignored) && fs::exists(path.string() + ".idx", ignored);
}

std::shared_ptr<const files::Mapped> map_source(const fs::path& path) {
  try {
    return std::make_shared<const files::Mapped>(path);
  } catch (const Error& e) {
    if (may_be_read(path)) throw;  // a limit of this process, or the disk, is the cause
    throw Error(Error::Kind::Data, e.what(), "check that the file is there and may be read");
  }
}

SourceText::SourceText(const Source& source, const std::string& text_field)
    : file_(map_source(source.path)) {
  const std::string name = source.path.string();
  text_ = plain_text(file_->text(), name, kept_);
  if (source.kind != Source::Kind::Records) {
    if (!source.range) return;
    kept_ = lines_of(source, without_bom(text_));
    text_ = kept_;
    return;
  }
  std::string lines;
  TextColumn column(name, text_field, lines);
  std::int64_t seen = 0;
  // A record outside of the range is an empty line.
  const auto is_wanted = [&] {
    const std::int64_t number = seen++;
    const bool wanted =
        !source.range || (number >= source.range->begin && number < source.range->end);
    if (!wanted && number < source.range->begin) lines += '\n';
    return wanted;
  };
  const auto refuse = [](const Error& error) { throw error; };
  const RecordSink sink = {.json =
                               [&](std::string_view text, std::int64_t line) {
                                 if (is_wanted()) column.add(json::parse_strict(text, name), line);
                               },
                           .value =
                               [&](json::Value value, std::int64_t line) {
                                 if (is_wanted()) column.add(value, line);
                               },
                           .bad =
                               [&](const Error& error) {
                                 if (is_wanted()) refuse(error);
                               },
                           .blank = [&] { lines += '\n'; }};
  record_formats().get(source.format).read({without_bom(text_), name}, sink);
  kept_ = std::move(lines);
  text_ = kept_;
}

std::string_view without_bom(std::string_view text) {
  constexpr std::string_view kBom = "\xEF\xBB\xBF";
  if (text.substr(0, kBom.size()) == kBom) text.remove_prefix(kBom.size());
  return text;
}

}  // namespace tessera::data

// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/records.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/data/datasets_folder.h"
#include "tessera/data/slices.h"
#include "tessera/data/sources.h"
#include "tessera/data/text_encoding.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRefusalsKept = 3;
constexpr std::string_view kBlank = " \t\r\n";

const char* const kFormats =
    ".jsonl, .ndjson, .json, .csv, .tsv, .conll, .parquet, .arrow and .feather are read, each also "
    "behind .gz or .zst";

/// "train.csv" of "train.csv.gz".
std::string without_compression(const std::string& name) {
  for (const std::string_view ending : {".gz", ".gzip", ".zst", ".zstd"}) {
    if (text::lower(name).ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return name;
}

const RecordFormat* format_by_name(const std::string& name) {
  const std::string extension =
      text::lower(fs::path(without_compression(name)).extension().string());
  for (const std::string& format : record_formats().names()) {
    const RecordFormat& candidate = record_formats().get(format);
    if (std::ranges::find(candidate.extensions, extension) != candidate.extensions.end())
      return &candidate;
  }
  return nullptr;
}

[[noreturn]] void refuse_format(const std::string& name) {
  throw Error(Error::Kind::Data,
              fmt::format("{} is not a file of records", name),
              fmt::format("give a .jsonl with one object a line; {}", kFormats));
}

const RecordFormat& format_of(const std::string& name, std::string_view bytes) {
  if (const RecordFormat* const known = format_by_name(name)) return *known;
  // The content decides if the name does not.
  if (bytes.starts_with("ARROW1") || bytes.starts_with(std::string_view("\xff\xff\xff\xff", 4)))
    return record_formats().get("arrow");
  if (bytes.starts_with("PAR1")) return record_formats().get("parquet");
  const std::size_t first = without_bom(bytes).find_first_not_of(kBlank);
  const std::string_view rest =
      first == std::string_view::npos ? std::string_view() : without_bom(bytes).substr(first);
  const bool text_file = text::lower(fs::path(name).extension().string()) == ".txt";
  if (!text_file && (rest.starts_with("{") || rest.starts_with("[")))
    return record_formats().get("json");
  refuse_format(name);
}

const json::Value* find_path(const json::Value& value, std::string_view path) {
  if (!value.is_object()) return nullptr;
  if (const json::Value* const found = value.find(path)) return found;
  const std::size_t dot = path.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const json::Value* const inner = value.find(path.substr(0, dot));
  return inner == nullptr ? nullptr : find_path(*inner, path.substr(dot + 1));
}

/// Ends the reading of a file behind the last record of a slice.
struct EndOfSlice {};

/// Reads the records of the files, one after the other.
class Reader {
 public:
  Reader(const RecordOptions& options, const TakeRecord& take) : options_(options), take_(take) {}

  void read(const std::string& name) {
    const SlicedName sliced = cut_slice(name);
    wanted_ = {.begin = 0, .end = std::numeric_limits<std::int64_t>::max()};
    if (sliced.slice) {
      wanted_ = range_of(*sliced.slice,
                         is_fixed(*sliced.slice) ? wanted_.end : count_records(sliced.name));
    }
    seen_ = 0;
    if (wanted_.begin >= wanted_.end) return;
    try {
      read_file(sliced.name);
    } catch (const EndOfSlice&) {
      // The records behind it are not looked at.
    }
  }
  [[nodiscard]] RecordCounts counts() && { return std::move(counts_); }

 private:
  void read_file(const std::string& file) {
    const auto mapped = map_source(file);
    std::string kept;
    std::string_view bytes = without_bom(plain_text(mapped->text(), file, kept));
    const RecordFormat& format = format_of(file, bytes);
    file_ = file;
    line_ = -1;
    rows_ = format.rows;
    const RecordText text{bytes, file};
    classes_ = class_names_of(
        file, format.datasets_metadata != nullptr ? format.datasets_metadata(text) : "");
    for (const auto& [name, source] : options_.map) {
      if (const auto found = classes_.find(source); found != classes_.end())
        classes_[name] = found->second;
    }
    const RecordSink sink = {.json =
                                 [this](std::string_view text, std::int64_t line) {
                                   if (is_wanted()) parse(text, line);
                                 },
                             .value =
                                 [this](json::Value value, std::int64_t line) {
                                   if (is_wanted()) take(std::move(value), line);
                                 },
                             .bad =
                                 [this](const Error& error) {
                                   if (is_wanted()) bad(error);
                                 },
                             .blank = [this] { counts_.blank += seen_ < wanted_.begin ? 0 : 1; }};
    format.read(text, sink);
  }
  /// Counts the next record; false before the slice.
  bool is_wanted() {
    if (seen_ >= wanted_.end) throw EndOfSlice{};
    return seen_++ >= wanted_.begin;
  }
  [[nodiscard]] std::string place(std::int64_t line) const {
    return fmt::format("{}:{}", file_, line);
  }
  void bad(const Error& error) {
    if (error.kind() != Error::Kind::Data) throw error;
    if (!options_.skip_bad) throw with_advice(error);
    ++counts_.bad;
    if (counts_.refused.size() < kRefusalsKept) counts_.refused.emplace_back(error.what());
  }
  /// The error, whose fix also says how to leave out all such records.
  [[nodiscard]] static Error with_advice(const Error& error) {
    const std::string& fix = error.fix();
    if (fix.find("on_bad_record") != std::string::npos) return error;
    return {error.kind(),
            error.what(),
            fmt::format("{}{}data.on_bad_record \"skip\" leaves such records out",
                        fix,
                        fix.empty() ? "" : "; ")};
  }
  void parse(std::string_view text, std::int64_t line) {
    std::string clean;
    bool replaced = false;
    if (options_.replace_invalid_utf8 && text::find_invalid_utf8(text)) {
      clean = text::replace_invalid_utf8(text);
      text = clean;
      replaced = true;
    }
    std::optional<json::Value> value;
    try {
      value = json::parse_strict(text, place(line));
    } catch (const Error& error) {
      // Its line 1 is the line of the record.
      const std::string first = place(line) + ":1:";
      std::string what = error.what();
      if (what.starts_with(first)) what.replace(0, first.size(), place(line) + ":");
      bad(Error(Error::Kind::Data, std::move(what), error.fix()));
      return;
    }
    counts_.replaced_utf8 += replaced ? 1 : 0;
    take(std::move(*value), line);
  }
  void take(json::Value value, std::int64_t line) {
    in_line_ = line == line_ ? in_line_ + 1 : 1;
    line_ = line;
    std::string where = place(line);
    if (in_line_ > 1) where += fmt::format(", element {}", in_line_);
    Record record{
        std::move(value), std::move(where), rows_, &classes_, counts_.records + counts_.bad};
    try {
      if (!record.value.is_object()) {
        record.refuse(
            fmt::format("expected a JSON object, found {}", record.value.type_name()),
            options_.example.empty() ? "write one object a record" : "write " + options_.example);
      }
      rename(record);
      take_(record);
      ++counts_.records;
    } catch (const Error& error) {
      bad(error);
    }
  }
  void rename(Record& record) const {
    for (const auto& [name, source] : options_.map) {
      if (name == source) continue;
      const json::Value* const found = find_path(record.value, source);
      if (found == nullptr && options_.map_may_miss) continue;
      if (found == nullptr) {
        std::vector<std::string> names;
        for (const auto& [member, value] : record.value.members())
          names.push_back(member);
        record.refuse(
            fmt::format("the record has no \"{}\"", source),
            fmt::format(
                "data.map reads \"{}\" from it; {}", name, text::suggestion(source, names)));
      }
      json::Value copy = *found;
      record.value[name] = std::move(copy);
    }
  }

  const RecordOptions& options_;
  const TakeRecord& take_;
  std::string file_;
  RecordRange wanted_;     // of the file
  std::int64_t seen_ = 0;  // records of the file so far
  bool rows_ = false;
  ClassNames classes_;
  std::int64_t line_ = -1, in_line_ = 0;  // of the last record, and how many its line has so far
  RecordCounts counts_;
};

// Words for parts of data sets in published file names.
constexpr std::array<std::string_view, 1> kTrainWords = {"train"};
constexpr std::array<std::string_view, 5> kValidationWords = {
    "validation", "valid", "val", "dev", "eval"};
constexpr std::array<std::string_view, 1> kTestWords = {"test"};

/// True if the name is the word, such as "train", or begins with it and a separator, such as in
/// "train-00000-of-00002".
bool has_word(const std::string& name, std::span<const std::string_view> words) {
  const std::string lower = text::lower(name);
  return std::ranges::any_of(words, [&](std::string_view word) {
    if (!lower.starts_with(word)) return false;
    return lower.size() == word.size() ||
           std::string_view(".-_").find(lower[word.size()]) != std::string_view::npos;
  });
}

std::span<const std::string_view> words_of(Split split) {
  if (split == Split::Train) return kTrainWords;
  if (split == Split::Validation) return kValidationWords;
  return kTestWords;
}
std::string name_of(Split split) {
  return std::string(words_of(split).front());
}

/// The record files of a folder, or, if it has none, those of its subfolders. Links to folders are
/// not followed, and hidden files and folders are left out.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::error_code failed;
  std::vector<fs::path> out, inner;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with('.')) continue;  // such as ._a.csv of macOS
    std::error_code ignored;
    if (at->is_directory(ignored) && !at->is_symlink(ignored)) inner.push_back(at->path());
    if (format_by_name(name) == nullptr) continue;
    if (at->is_regular_file(ignored)) out.push_back(at->path());
    refuse_dangling(at->path());
  }
  TESSERA_REQUIRE(!failed,
                  Data,
                  fmt::format("cannot read the folder {}: {}", folder.string(), failed.message()),
                  "check its permissions");
  if (!out.empty()) return out;
  for (const fs::path& next : inner) {
    const std::vector<fs::path> more = files_in(next);
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

std::vector<std::string> in_folder(const std::string& folder, Split split) {
  if (is_datasets_folder(folder)) return datasets_files(folder, words_of(split));
  std::vector<fs::path> all = files_in(folder);
  TESSERA_REQUIRE(!all.empty(),
                  Data,
                  fmt::format("no file of records in the folder {} and its subfolders", folder),
                  kFormats);
  std::ranges::sort(all, {}, [](const fs::path& path) { return path.native(); });
  // By the name of the file, or of a folder: data/train-00000.parquet, train/a.jsonl.
  const auto named = [&](const fs::path& path, Split part) {
    const fs::path inside = path.lexically_relative(folder);
    return std::ranges::any_of(
        inside, [&](const fs::path& name) { return has_word(name.string(), words_of(part)); });
  };
  const bool in_parts =
      std::ranges::any_of(all, [&](const fs::path& path) { return named(path, Split::Train); });
  std::vector<std::string> out;
  for (const fs::path& path : all) {
    if (!in_parts || named(path, split)) out.push_back(path.string());
  }
  TESSERA_REQUIRE(!out.empty(),
                  Data,
                  fmt::format("the folder {} has files for training, and none whose name begins "
                              "with {}",
                              folder,
                              name_of(split)),
                  "name the files themselves");
  return out;
}

}  // namespace

void Record::refuse(const std::string& what, std::string fix) const {
  throw Error(Error::Kind::Data, fmt::format("{}: {}", place, what), std::move(fix));
}

RecordCounts for_each_record(const std::vector<std::string>& files,
                             const RecordOptions& options,
                             const TakeRecord& take) {
  Reader reader(options, take);
  for (const std::string& file : files)
    reader.read(file);
  return std::move(reader).counts();
}

std::int64_t count_records(const std::string& file) {
  const auto mapped = map_source(file);
  std::string kept;
  const std::string_view bytes = without_bom(plain_text(mapped->text(), file, kept));
  std::int64_t count = 0;
  const RecordSink sink = {
      .json = [&](std::string_view /*text*/, std::int64_t /*line*/) { ++count; },
      .value = [&](const json::Value& /*value*/, std::int64_t /*line*/) { ++count; },
      .bad = [&](const Error& /*error*/) { ++count; },
      .blank = [] {}};
  format_of(file, bytes).read({bytes, file}, sink);
  return count;
}

std::vector<std::string> slice_files(const std::vector<std::string>& files, const Slice& slice) {
  if (files.size() == 1 && !cut_slice(files.front()).slice)
    return {files.front() + slice_text(slice)};
  std::vector<std::string> plain;
  std::vector<RecordRange> ranges;
  std::int64_t all = 0;
  for (const std::string& file : files) {
    const SlicedName one = cut_slice(file);
    const std::int64_t count = count_records(one.name);
    plain.push_back(one.name);
    ranges.push_back(one.slice ? range_of(*one.slice, count)
                               : RecordRange{.begin = 0, .end = count});
    all += ranges.back().end - ranges.back().begin;
  }
  const RecordRange range = range_of(slice, all);
  std::vector<std::string> out;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const RecordRange own = ranges[i];
    const std::int64_t size = own.end - own.begin,
                       begin = std::max(range.begin - first, std::int64_t{0}),
                       end = std::min(range.end - first, size);
    first += size;
    if (begin >= end) continue;
    const bool whole = begin == 0 && end == size;
    out.push_back(whole ? files[i]
                        : fmt::format("{}[{}:{}]", plain[i], own.begin + begin, own.begin + end));
  }
  return out;
}

std::vector<std::string> record_files(const std::vector<std::string>& names, Split split) {
  std::vector<std::string> out;
  for (const std::string& whole : names) {
    std::error_code ignored;
    const auto& [name, slice] = cut_slice(whole);
    if (slice) {
      const std::vector<std::string> some = slice_files(record_files({name}, split), *slice);
      out.insert(out.end(), some.begin(), some.end());
      continue;
    }
    std::vector<std::string> some = {name};
    if (fs::is_directory(name, ignored)) {
      some = in_folder(name, split);
    } else if (!fs::exists(name, ignored)) {
      if (name.find_first_of("*?[") == std::string::npos) refuse_missing(name);
      some = matches_of(name);
    }
    for (const std::string& file : some) {
      refuse_dangling(file);
      TESSERA_REQUIRE(fs::is_regular_file(file, ignored),
                      Data,
                      file + " is neither a file nor a folder",
                      "name files of records, or a folder of them");
      refuse_hole(file);
    }
    out.insert(out.end(), some.begin(), some.end());
  }
  return out;
}

Registry<RecordFormat>& record_formats() {
  static Registry<RecordFormat> registry("format of records");
  return registry;
}

}  // namespace tessera::data

// SPDX-License-Identifier: Apache-2.0
// Records: objects with named fields, from files of several formats.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/json.h"
#include "tessera/data/class_names.h"

namespace tessera::data {

/// A record of a file.
struct Record {
  json::Value value;  ///< an object
  std::string place;  ///< its place, such as "train.jsonl:12"
  /// True for a row of a text table, in which digits in a string look like a number.
  bool row = false;
  /// The names of classes that the file declares for fields of integers, by the tasks' field names.
  const ClassNames* classes = nullptr;
  /// Its number among the records of all files, from 0; bad records count, blank lines do not.
  std::int64_t number = 0;

  /// Throws Error{Data} with the place.
  [[noreturn]] void refuse(const std::string& what, std::string fix) const;
};

/// Options for reading records.
struct RecordOptions {
  bool replace_invalid_utf8 = false;  ///< by U+FFFD, instead of an error
  bool skip_bad = false;              ///< counts and skips an invalid record
  bool skip_equal = false;  ///< for datasets of tasks: skips records that equal an earlier one
  /// Maps the tasks' field names to those of the files: {"prompt", "question"}. A nested field is
  /// written with dots: "answer.text".
  std::map<std::string, std::string> map;
  bool map_may_miss = false;  ///< a record may lack fields of `map`, such as labels in prediction
  std::string example;        ///< a record as an example in messages: {"text": "..."}
};

/// Counts from reading records.
struct RecordCounts {
  std::int64_t records = 0;          ///< accepted records
  std::int64_t blank = 0;            ///< empty lines and rows
  std::int64_t bad = 0;              ///< skipped records
  std::int64_t replaced_utf8 = 0;    ///< records in which bytes were replaced
  std::vector<std::string> refused;  ///< errors of the first bad records, with their places
};

using TakeRecord = std::function<void(const Record&)>;
/// Calls take(record) for every record of the files in order. `files` is a result of
/// record_files(). Throws Error{Data} with file and line for a record that cannot be read or for
/// which `take` throws Error{Data}, unless options.skip_bad. Memory: the largest file; twice that
/// if it is compressed or not a .jsonl.
RecordCounts for_each_record(const std::vector<std::string>& files,
                             const RecordOptions& options,
                             const TakeRecord& take);

/// The part of a data set that is published in parts.
enum class Split : std::uint8_t { Train, Validation, Test };

/// The files for `names`, in order: files, patterns such as "data/*.jsonl", and folders. A folder
/// without record files stands for those of its subfolders. Where files, or the subfolders that
/// they are in, are named by their part (train.csv, dev.csv, test.csv; data/train-00000.parquet;
/// train/a.jsonl), those of `split` are read; else all, in byte order of paths. Throws Error{Data}
/// for something missing, for an unsupported format, and for a folder without files.
std::vector<std::string> record_files(const std::vector<std::string>& names, Split split);

// Formats. To add one, add one file to data/record_formats/ that ends with TESSERA_RECORD_FORMAT.

/// The decompressed contents of a file.
struct RecordText {
  std::string_view bytes;
  std::string name;  ///< for messages
};
/// Receives the JSON object at a place, as text or as a value made from a row.
struct RecordSink {
  std::function<void(std::string_view json, std::int64_t line)> json;
  std::function<void(json::Value value, std::int64_t line)> value;
  std::function<void(const Error& error)> bad;  ///< throws, or counts the record
  std::function<void()> blank;
};
/// A file format. `read` calls the sink for each record in order; lines count from 1.
struct RecordFormat {
  std::vector<std::string> extensions;  ///< such as ".csv"
  bool rows = false;                    ///< its records are rows of a text table
  void (*read)(const RecordText& text, const RecordSink& sink);
  /// Returns the text that `datasets` keeps in a file (class_names.h); empty: none. Null: its files
  /// have no place for one.
  std::string (*datasets_metadata)(const RecordText& text) = nullptr;
};
Registry<RecordFormat>& record_formats();
#define TESSERA_RECORD_FORMAT(name, ...)           \
  static const bool tessera_record_format_##name = \
      ::tessera::data::record_formats().add(#name, __VA_ARGS__)

/// The first bytes of Feather's version 1, another format than Arrow's, and what to do with it.
inline constexpr std::string_view kFeather1 = "FEA1";
inline constexpr const char* kFeather1Fix =
    "write it again with Arrow 1.0 or later: python3 -c 'import pyarrow.feather as f; "
    "f.write_feather(f.read_table(\"{0}\"), \"new.feather\")'";

/// Decompresses gzip or zstd, which is detected by content, into `kept`; returns other contents
/// unchanged. Throws Error{Data} for damaged files and for more than 64 GiB.
std::string_view decompressed(std::string_view bytes, const std::string& name, std::string& kept);

}  // namespace tessera::data

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

namespace tessera::data {

/// A record of a file.
struct Record {
  json::Value value;  ///< an object
  std::string place;  ///< "train.jsonl:12"
  /// Whether it is the row of a table as text, in which a text of digits looks like a number.
  bool row = false;

  /// Throws Error{Data} with the place.
  [[noreturn]] void refuse(const std::string& what, std::string fix) const;
};

/// How records are read.
struct RecordOptions {
  bool replace_invalid_utf8 = false;  ///< by U+FFFD, in place of an error
  bool skip_bad = false;              ///< a record that is refused is counted and left out
  /// Names of fields as tasks call them, and as the files do: {"prompt", "question"}. The name of a
  /// field inside of another one is written with dots: "answer.text".
  std::map<std::string, std::string> map;
  std::string example;  ///< a record, for messages: {"text": "..."}
};

/// What was met while records were read.
struct RecordCounts {
  std::int64_t records = 0;          ///< those that were taken
  std::int64_t blank = 0;            ///< empty lines and rows
  std::int64_t bad = 0;              ///< those that were left out
  std::int64_t replaced_utf8 = 0;    ///< those in which bytes were replaced
  std::vector<std::string> refused;  ///< what was wrong with the first bad ones, with their places
};

using TakeRecord = std::function<void(const Record&)>;
/// Calls take(record) for every record of the files in order. The files are those that
/// record_files() returns. Error{Data} names file and line of a record that cannot be read or that
/// `take` refuses by Error{Data}, unless options.skip_bad. Memory: the largest file, twice where it
/// is compressed or no .jsonl.
RecordCounts for_each_record(const std::vector<std::string>& files,
                             const RecordOptions& options,
                             const TakeRecord& take);

/// Which part of data that comes in parts is meant.
enum class Split : std::uint8_t { Train, Validation, Test };

/// The files that `names` stand for, in order: files, patterns such as "data/*.jsonl", and folders.
/// A folder whose files are named by their part (train.csv, dev.csv, test.csv; train-00000.jsonl)
/// stands for those of `split`, another one for all its files of records by byte order of names.
/// Error{Data} for what is missing, of a format that is not read, and for a folder without files.
std::vector<std::string> record_files(const std::vector<std::string>& names, Split split);

// Formats. Adding one is one file in data/record_formats/ that ends with TESSERA_RECORD_FORMAT.

/// The contents of a file, whose compression is undone.
struct RecordText {
  std::string_view bytes;
  std::string name;  ///< for messages
};
/// Takes what stands at a place: text of one JSON object, or a value that was made of a row.
struct RecordSink {
  std::function<void(std::string_view json, std::int64_t line)> json;
  std::function<void(json::Value value, std::int64_t line)> value;
  std::function<void(const Error& error)> bad;  ///< throws, or counts the record
  std::function<void()> blank;
};
/// A format of files. `read` calls the sink for each record in order; lines count from 1.
struct RecordFormat {
  std::vector<std::string> extensions;  ///< ".csv"
  bool rows = false;                    ///< whether its records are rows of a table as text
  void (*read)(const RecordText& text, const RecordSink& sink);
};
Registry<RecordFormat>& record_formats();
#define TESSERA_RECORD_FORMAT(name, ...)           \
  static const bool tessera_record_format_##name = \
      ::tessera::data::record_formats().add(#name, __VA_ARGS__)

/// The contents of a file that gzip or zstd has compressed, by its content; others unchanged.
/// `kept` holds what was made. Error{Data} for damaged files and for more than 64 GiB.
std::string_view decompressed(std::string_view bytes, const std::string& name, std::string& kept);

}  // namespace tessera::data

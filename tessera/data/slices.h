// SPDX-License-Identifier: Apache-2.0
// Slices of the records of a data set, written behind its name: "train.jsonl[:1000]".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// The records from `begin` to before `end`, as in the splits of `datasets`: numbers of records,
/// below 0 counted from the end; or, with `percent`, percentages of all records.
struct Slice {
  std::optional<std::int64_t> begin, end;
  bool percent = false;
  bool operator==(const Slice&) const = default;
};

/// Records by their numbers, from 0: `begin` to before `end`.
struct RecordRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const RecordRange&) const = default;
};

/// A name of data, and the slice behind it.
struct SlicedName {
  std::string name;
  std::optional<Slice> slice = std::nullopt;
};

/// Returns what stands in the brackets of "[10%:20%]", as a slice; nothing: it has no colon, and is
/// not meant as one. Throws Error{Config} for ends that are no numbers, and above 100 %.
std::optional<Slice> parse_slice(std::string_view brackets);

/// Divides "train.jsonl[:1000]" into its name and its slice. A file or folder that exists by the
/// whole name has no slice, and neither has a pattern such as "part-[0-9].jsonl". Throws the errors
/// of parse_slice() with the name.
SlicedName cut_slice(const std::string& name);

/// The range of a slice among `count` records. Percentages become the nearest number of records, a
/// half the even one of both; ends behind the last record are the last one.
RecordRange range_of(const Slice& slice, std::int64_t count);

/// True if the range of the slice does not depend on the number of records, but for its end.
bool is_fixed(const Slice& slice);

/// "[10%:20%]"; of no slice "".
std::string slice_text(const std::optional<Slice>& slice);

/// The number of records of a file, bad ones included; blank lines do not count. Throws Error{Data}
/// for a file that is not read.
std::int64_t count_records(const std::string& file);

/// The files that hold a slice of the records of all `files`, each with its own slice behind its
/// name; data::record_files() returns such names for a name with a slice, and
/// data::for_each_record() reads them. Names in `files` may have slices, of which a part is then
/// taken. Reads the files, if there are several or they have slices. Throws Error{Data} for those
/// that cannot be read.
std::vector<std::string> slice_files(const std::vector<std::string>& files, const Slice& slice);

}  // namespace tessera::data

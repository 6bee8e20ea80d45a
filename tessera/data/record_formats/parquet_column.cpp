// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/record_formats/parquet_column.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/record_formats/blocks.h"

namespace tessera::data::parquet {
namespace {

constexpr std::int64_t kMostPageBytes = std::int64_t{1} << 28;

// Numbers of parquet.thrift.
enum PhysicalType { kBoolean, kInt32, kInt64, kInt96, kFloat, kDouble, kByteArray, kFixed };
enum Encoding {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kDeltaBinaryPacked = 5,
  kDeltaLengthByteArray = 6,
  kDeltaByteArray = 7,
  kRleDictionary = 8,
};
enum PageType { kDataPage, kIndexPage, kDictionaryPage, kDataPageV2 };

[[noreturn]] void refuse_at(const std::string& place, const std::string& what, const char* fix) {
  throw Error(Error::Kind::Data, fmt::format("{}: {}", place, what), fix);
}
[[noreturn]] void refuse_damage(const std::string& place) {
  refuse_at(place, "a page of a column is damaged", "the file is damaged: fetch it again");
}

std::string_view take(std::string_view& bytes, std::uint64_t count, const std::string& place) {
  if (count > bytes.size()) refuse_damage(place);
  const std::string_view out = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return out;
}
template <class T>
T load(std::string_view& bytes, const std::string& place) {
  T out;
  std::memcpy(&out, take(bytes, sizeof(T), place).data(), sizeof(T));
  return out;
}
std::uint64_t varint(std::string_view& bytes, const std::string& place) {
  std::uint64_t out = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto part = load<std::uint8_t>(bytes, place);
    out |= static_cast<std::uint64_t>(part & 0x7FU) << shift;
    if ((part & 0x80U) == 0) return out;
  }
  refuse_damage(place);
}
std::int64_t zigzag(std::string_view& bytes, const std::string& place) {
  const std::uint64_t value = varint(bytes, place);
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1U);
}

/// Returns bits [at, at + width) of `bytes`, lowest first; width is at most 64.
std::uint64_t bits_at(std::string_view bytes, std::uint64_t at, unsigned width) {
  std::uint64_t out = 0;
  for (unsigned done = 0; done < width;) {
    const std::uint64_t bit = at + done;
    const unsigned offset = bit % 8, some = std::min(8 - offset, width - done);
    const auto byte = static_cast<std::uint8_t>(bytes[bit / 8]);
    out |= static_cast<std::uint64_t>((byte >> offset) & ((1U << some) - 1U)) << done;
    done += some;
  }
  return out;
}

/// Decodes `count` numbers of the hybrid of runs and packed bits, and passes each to `put(value)`.
template <class Put>
void read_hybrid(std::string_view bytes,
                 unsigned width,
                 std::int64_t count,
                 const std::string& place,
                 const Put& put) {
  if (width > 32) refuse_damage(place);
  while (count > 0) {
    const std::uint64_t head = varint(bytes, place);
    if ((head & 1U) == 0) {
      const std::uint64_t run = head >> 1;
      if (run == 0) refuse_damage(place);
      const std::string_view value = take(bytes, (width + 7) / 8, place);
      const auto number = static_cast<std::uint32_t>(bits_at(value, 0, width));
      const auto here = static_cast<std::int64_t>(
          std::min<std::uint64_t>(run, static_cast<std::uint64_t>(count)));
      for (std::int64_t i = 0; i < here; ++i)
        put(number);
      count -= here;
      continue;
    }
    const std::uint64_t groups = head >> 1;
    if (groups == 0 || groups > bytes.size() + 1 || groups * width > bytes.size() + 8)
      refuse_damage(place);
    // The last group may be truncated after its last value.
    const std::uint64_t size = std::min<std::uint64_t>(groups * width, bytes.size());
    const std::string_view packed = take(bytes, size, place);
    const auto here = static_cast<std::int64_t>(
        std::min<std::uint64_t>(groups * 8, static_cast<std::uint64_t>(count)));
    if ((static_cast<std::uint64_t>(here) * width + 7) / 8 > size) refuse_damage(place);
    for (std::int64_t i = 0; i < here; ++i)
      put(static_cast<std::uint32_t>(
          bits_at(packed, static_cast<std::uint64_t>(i) * width, width)));
    count -= here;
  }
}

/// DELTA_BINARY_PACKED: integers stored as differences.
std::vector<std::int64_t> read_deltas(std::string_view& bytes,
                                      std::int64_t most,
                                      const std::string& place) {
  const std::uint64_t block = varint(bytes, place), minis = varint(bytes, place),
                      total = varint(bytes, place);
  std::vector<std::int64_t> out;
  auto last = static_cast<std::uint64_t>(zigzag(bytes, place));
  if (total > static_cast<std::uint64_t>(most) || minis == 0 || block % minis != 0 ||
      block > (1U << 20) || minis > block)
    refuse_damage(place);
  const std::uint64_t each = block / minis;
  if (total > 0) out.push_back(static_cast<std::int64_t>(last));
  while (out.size() < total) {
    const auto smallest = static_cast<std::uint64_t>(zigzag(bytes, place));
    const std::string_view widths = take(bytes, minis, place);
    for (std::uint64_t m = 0; m < minis && out.size() < total; ++m) {
      const auto width = static_cast<std::uint8_t>(widths[m]);
      if (width > 64) refuse_damage(place);
      const std::string_view packed = take(bytes, (each * width + 7) / 8, place);
      for (std::uint64_t i = 0; i < each && out.size() < total; ++i) {
        // Differences wrap around.
        last += smallest + bits_at(packed, i * width, width);
        out.push_back(static_cast<std::int64_t>(last));
      }
    }
  }
  return out;
}

unsigned width_of(int most) {
  return static_cast<unsigned>(std::bit_width(static_cast<unsigned>(most)));
}

std::string decompressed_page(std::string_view bytes,
                              std::int64_t size,
                              int codec,
                              const std::string& place) {
  if (size < 0 || size > kMostPageBytes) refuse_damage(place);
  const auto wide = static_cast<std::size_t>(size);
  switch (codec) {
    case 0:
      return std::string(bytes);
    case 1:
      return snappy_block(bytes, wide, place);
    case 2:
      return gzip_block(bytes, wide, place);
    case 6:
      return zstd_block(bytes, wide, place);
    case 7:
      return lz4_block(bytes, wide, place);
    default:
      refuse_at(place,
                fmt::format("codec {} of Parquet is not read", codec),
                "write the file with snappy, gzip, zstd or no compression");
  }
}

}  // namespace

Column::Column(const Leaf& leaf,
               const Thrift& metadata,
               std::string_view file,
               std::int64_t& budget,
               const std::string& place)
    : leaf_(leaf), place_(place) {
  const std::int64_t values = metadata.number_at(5, -1), size = metadata.number_at(7, -1),
                     dictionary = metadata.number_at(11, -1);
  std::int64_t begin = metadata.number_at(9, -1);
  if (dictionary > 0 && dictionary < begin) begin = dictionary;
  const auto all = static_cast<std::int64_t>(file.size());
  if (values < 0 || begin < 0 || size < 0 || begin > all || size > all - begin)
    refuse("lies outside");
  if (values > budget) refuse("has more values than its file");
  budget -= values;
  const auto codec = static_cast<int>(metadata.number_at(4, 0));
  std::string_view rest =
      file.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
  while (count_ < values) {
    const Thrift header = read_thrift(rest, place_);
    const std::int64_t bytes = header.number_at(3, -1);
    if (bytes < 0) refuse("has a page without size");
    read_page(header,
              parquet::take(rest, static_cast<std::uint64_t>(bytes), place_),
              codec,
              values - count_);
  }
}

void Column::refuse(const std::string& what) const {
  refuse_at(place_,
            fmt::format("the column \"{}\" {}", leaf_.name, what),
            "the file is damaged: fetch it again");
}

int Column::levels_at(const Levels& levels) const {
  if (at_end()) refuse("ends before its rows");
  return levels.empty() ? 0 : levels[static_cast<std::size_t>(at_)];
}

void Column::read_page(const Thrift& header, std::string_view bytes, int codec, std::int64_t most) {
  const auto type = header.number_at(1, -1);
  const std::int64_t size = header.number_at(2, -1);
  if (type == kIndexPage) return;
  if (type == kDictionaryPage) {
    const Thrift* const details = header.find(7);
    if (details == nullptr || !dictionary_.empty()) refuse("has a damaged dictionary");
    const std::int64_t count = details->number_at(1, -1);
    const std::string page = decompressed_page(bytes, size, codec, place_);
    if (count < 0 || count > static_cast<std::int64_t>(page.size()) * 8)
      refuse("has a damaged dictionary");
    if (!leaf_.skipped) read_plain(page, count, dictionary_);
    return;
  }
  const bool second = type == kDataPageV2;
  const Thrift* const details = header.find(second ? 8 : 5);
  if (details == nullptr || (type != kDataPage && !second)) refuse("has an unknown page");
  const std::int64_t count = details->number_at(1, -1);
  if (count < 0 || count > most) refuse("has more values than it says");
  const auto encoding = static_cast<int>(details->number_at(second ? 4 : 2, -1));
  std::string page;
  std::string_view rest;
  Levels repeated, defined;
  const auto levels = [&](std::string_view coded, int most, Levels& out) {
    out.reserve(static_cast<std::size_t>(count));
    read_hybrid(coded, width_of(most), count, place_, [&](std::uint32_t level) {
      if (level > static_cast<std::uint32_t>(most)) refuse_damage(place_);
      out.push_back(static_cast<std::uint8_t>(level));
    });
  };
  if (second) {
    // Levels precede the compressed data.
    const std::int64_t of_defined = details->number_at(5, -1),
                       of_repeated = details->number_at(6, -1);
    if (of_defined < 0 || of_repeated < 0) refuse("has levels without size");
    const std::string_view r = parquet::take(
                               bytes, static_cast<std::uint64_t>(of_repeated), place_),
                           d = parquet::take(bytes, static_cast<std::uint64_t>(of_defined), place_);
    if (leaf_.most_repeated > 0) levels(r, leaf_.most_repeated, repeated);
    if (leaf_.most_defined > 0) levels(d, leaf_.most_defined, defined);
    const bool packed = details->number_at(7, 1) != 0;
    page = decompressed_page(bytes, size - of_defined - of_repeated, packed ? codec : 0, place_);
    rest = page;
  } else {
    page = decompressed_page(bytes, size, codec, place_);
    rest = page;
    const auto part = [&](int most, Levels& out) {
      if (most == 0) return;
      const auto length = load<std::uint32_t>(rest, place_);
      levels(parquet::take(rest, length, place_), most, out);
    };
    part(leaf_.most_repeated, repeated);
    part(leaf_.most_defined, defined);
  }
  std::int64_t there = count;
  if (leaf_.most_defined > 0) there = std::ranges::count(defined, leaf_.most_defined);
  if (!leaf_.skipped) read_values(rest, encoding, there);
  repeated_.insert(repeated_.end(), repeated.begin(), repeated.end());
  defined_.insert(defined_.end(), defined.begin(), defined.end());
  count_ += count;
}

void Column::read_values(std::string_view bytes, int encoding, std::int64_t count) {
  const std::size_t first = values_.size();
  const auto in_order = [&] {
    for (std::size_t i = first; i < values_.size(); ++i)
      places_.push_back(static_cast<std::uint32_t>(dictionary_.size() + i));
    if (values_.size() - first != static_cast<std::size_t>(count)) refuse_damage(place_);
  };
  switch (encoding) {
    case kPlainDictionary:
    case kRleDictionary: {
      if (count == 0) return;
      const auto width = load<std::uint8_t>(bytes, place_);
      read_hybrid(bytes, width, count, place_, [&](std::uint32_t at) {
        if (at >= dictionary_.size()) refuse("leads out of its dictionary");
        places_.push_back(at);
      });
      return;
    }
    case kPlain:
      read_plain(bytes, count, values_);
      return in_order();
    case kRle: {
      if (leaf_.type != kBoolean) break;
      if (count == 0) return;
      const auto length = load<std::uint32_t>(bytes, place_);
      read_hybrid(parquet::take(bytes, length, place_), 1, count, place_, [&](std::uint32_t bit) {
        values_.push_back(json::Value::boolean(bit != 0));
      });
      return in_order();
    }
    case kDeltaBinaryPacked:
      if (leaf_.type != kInt32 && leaf_.type != kInt64) break;
      for (const std::int64_t value : read_deltas(bytes, count, place_))
        values_.push_back(whole_number(value));
      return in_order();
    case kDeltaLengthByteArray:
    case kDeltaByteArray: {
      if (leaf_.type != kByteArray) break;
      std::vector<std::int64_t> shared;
      if (encoding == kDeltaByteArray) shared = read_deltas(bytes, count, place_);
      std::vector<std::string> ends;
      read_delta_lengths(bytes, count, ends);
      std::string last;
      std::uint64_t made = 0;
      for (std::size_t i = 0; i < ends.size(); ++i) {
        if (encoding == kDeltaByteArray) {
          if (i >= shared.size() || shared[i] < 0 || shared[i] > std::ssize(last))
            refuse_damage(place_);
          last.resize(static_cast<std::size_t>(shared[i]));
          last += ends[i];
        } else {
          last = std::move(ends[i]);
        }
        made += last.size();
        if (made > static_cast<std::uint64_t>(kMostPageBytes)) refuse_damage(place_);
        values_.push_back(text(last));
      }
      return in_order();
    }
    default:
      break;
  }
  refuse_at(
      place_,
      fmt::format(
          "the column \"{}\" has encoding {} of Parquet, which is not read", leaf_.name, encoding),
      "write the file with the encodings PLAIN and RLE_DICTIONARY");
}

void Column::read_delta_lengths(std::string_view& bytes,
                                std::int64_t count,
                                std::vector<std::string>& out) const {
  std::vector<std::uint64_t> lengths;
  for (const std::int64_t length : read_deltas(bytes, count, place_)) {
    if (length < 0) refuse_damage(place_);
    lengths.push_back(static_cast<std::uint64_t>(length));
  }
  for (const std::uint64_t length : lengths)
    out.emplace_back(parquet::take(bytes, length, place_));
}

json::Value Column::text(std::string_view bytes) const {
  if (text::find_invalid_utf8(bytes))
    refuse_at(place_, fmt::format("the text of \"{}\" is not UTF-8", leaf_.name), "write it again");
  return json::Value::string(std::string(bytes));
}

json::Value Column::whole_number(std::int64_t value) const {
  if (leaf_.type == kInt32) value = static_cast<std::int32_t>(static_cast<std::uint32_t>(value));
  if (!leaf_.is_unsigned || value >= 0) return json::Value::integer(value);
  if (leaf_.type == kInt32) return json::Value::integer(static_cast<std::uint32_t>(value));
  return json::Value::number(static_cast<double>(static_cast<std::uint64_t>(value)));
}

void Column::read_plain(std::string_view bytes,
                        std::int64_t count,
                        std::vector<json::Value>& out) const {
  const auto fraction = [](double value) {
    return std::isfinite(value) ? json::Value::number(value) : json::Value();
  };
  if (leaf_.type == kBoolean && (count + 7) / 8 > std::ssize(bytes)) refuse_damage(place_);
  for (std::int64_t i = 0; i < count; ++i) {
    switch (leaf_.type) {
      case kBoolean:
        out.push_back(json::Value::boolean(bits_at(bytes, static_cast<std::uint64_t>(i), 1) != 0));
        break;
      case kInt32:
        out.push_back(whole_number(load<std::int32_t>(bytes, place_)));
        break;
      case kInt64:
        out.push_back(whole_number(load<std::int64_t>(bytes, place_)));
        break;
      case kFloat:
        out.push_back(fraction(load<float>(bytes, place_)));
        break;
      case kDouble:
        out.push_back(fraction(load<double>(bytes, place_)));
        break;
      case kByteArray: {
        const auto length = load<std::uint32_t>(bytes, place_);
        out.push_back(text(parquet::take(bytes, length, place_)));
        break;
      }
      default:
        refuse("has values that are not read");
    }
  }
}

json::Value Column::take() {
  const bool there = defined() == leaf_.most_defined;
  ++at_;
  if (!there || leaf_.skipped) return {};
  if (next_ >= places_.size()) refuse("has fewer values than it says");
  const std::uint32_t place = places_[next_++];
  return place < dictionary_.size() ? dictionary_[place] : values_[place - dictionary_.size()];
}

}  // namespace tessera::data::parquet

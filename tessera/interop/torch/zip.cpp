// SPDX-License-Identifier: Apache-2.0
// Source: PKWARE, APPNOTE.TXT 6.3.10, sections 4.3 (records) and 4.5.3 (zip64 extra field).
#include "tessera/interop/torch/zip.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/json_cursor.h"

namespace tessera::interop {
namespace {

constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50,
                        kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                        kLocatorBytes = 20, kMaxComment = 0xFFFF;
constexpr std::uint32_t kSaturated = 0xFFFFFFFF;
constexpr std::uint16_t kZip64Field = 1, kEncrypted = 1;

struct Directory {
  std::uint64_t begin = 0, end = 0, entries = 0;
};

/// An entry of the central directory.
struct Central {
  std::string name;
  std::uint64_t stored = 0, size = 0, local = 0;
};

class Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& source)
      : file_(reinterpret_cast<const char*>(file.data()), file.size()), source_(source) {}

  std::map<std::string, ZipEntry, std::less<>> read() {
    directory_ = find_directory();
    std::map<std::string, ZipEntry, std::less<>> out;
    std::uint64_t at = directory_.begin;
    for (std::uint64_t i = 0; i < directory_.entries; ++i) {
      const Central central = read_central(at);
      const ZipEntry entry = check_local(central);
      if (!out.emplace(central.name, entry).second)
        refuse(fmt::format("entry {} is there twice", shown(central.name)));
    }
    if (at != directory_.end) refuse("its directory is longer than its entries");
    check_overlaps(out);
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Error::Kind::Format,
                fmt::format("{}: {}", source_, what),
                "the file is damaged or was cut short: fetch it again");
  }
  static std::string shown(std::string_view name) { return checkpoint::JsonCursor::shown(name); }

  template <class T>
  [[nodiscard]] T number(std::uint64_t at) const {
    if (at > file_.size() || file_.size() - at < sizeof(T)) refuse("a record reaches past the end");
    T out;
    std::memcpy(&out, file_.data() + at, sizeof(T));
    return out;
  }
  [[nodiscard]] std::string_view text(std::uint64_t at, std::uint64_t size) const {
    if (at > file_.size() || file_.size() - at < size) refuse("a record reaches past the end");
    return file_.substr(at, size);
  }

  /// Finds the last record from the end, because a comment may follow it.
  [[nodiscard]] std::uint64_t find_end() const {
    for (std::uint64_t back = kEndBytes; back <= kEndBytes + kMaxComment; ++back) {
      if (back > file_.size()) break;
      const std::uint64_t at = file_.size() - back;
      if (number<std::uint32_t>(at) == kEnd && number<std::uint16_t>(at + 20) == back - kEndBytes)
        return at;
    }
    refuse("it begins as a zip file but has no directory at its end");
  }

  [[nodiscard]] Directory find_directory() const {
    const std::uint64_t end = find_end();
    if (number<std::uint16_t>(end + 4) != number<std::uint16_t>(end + 6))
      refuse("it has several disks");
    Directory out{number<std::uint32_t>(end + 16),
                  number<std::uint32_t>(end + 12),
                  number<std::uint16_t>(end + 10)};
    std::uint64_t limit = end;
    if (end >= kLocatorBytes && number<std::uint32_t>(end - kLocatorBytes) == kLocator64) {
      limit = number<std::uint64_t>(end - kLocatorBytes + 8);
      if (limit > end - kLocatorBytes || end - kLocatorBytes - limit < kEnd64Bytes ||
          number<std::uint32_t>(limit) != kEnd64) {
        refuse("its zip64 record is not where it should be");
      }
      out = {number<std::uint64_t>(limit + 48),
             number<std::uint64_t>(limit + 40),
             number<std::uint64_t>(limit + 32)};
    }
    if (out.begin > limit || out.end > limit - out.begin) {
      refuse(fmt::format("its directory claims {} bytes at byte {}, past its own end record at {}",
                         out.end,
                         out.begin,
                         limit));
    }
    out.end += out.begin;
    if (out.entries > (out.end - out.begin) / kCentralBytes) {
      refuse(fmt::format(
          "it claims {} entries in a directory of {} bytes", out.entries, out.end - out.begin));
    }
    return out;
  }

  Central read_central(std::uint64_t& at) const {
    if (directory_.end - at < kCentralBytes || number<std::uint32_t>(at) != kCentral)
      refuse("an entry of its directory is damaged");
    const auto flags = number<std::uint16_t>(at + 8), method = number<std::uint16_t>(at + 10);
    const std::uint64_t name_bytes = number<std::uint16_t>(at + 28),
                        extra_bytes = number<std::uint16_t>(at + 30),
                        comment_bytes = number<std::uint16_t>(at + 32);
    const std::uint64_t whole = kCentralBytes + name_bytes + extra_bytes + comment_bytes;
    if (directory_.end - at < whole) refuse("an entry of its directory reaches past the end of it");
    Central out{std::string(text(at + kCentralBytes, name_bytes)),
                number<std::uint32_t>(at + 20),
                number<std::uint32_t>(at + 24),
                number<std::uint32_t>(at + 42)};
    check_name(out.name);
    widen(out, text(at + kCentralBytes + name_bytes, extra_bytes));
    if ((flags & kEncrypted) != 0) refuse(fmt::format("entry {} is encrypted", shown(out.name)));
    if (method != 0 || out.stored != out.size) {
      refuse(fmt::format("entry {} is compressed, which torch.save never does", shown(out.name)));
    }
    at += whole;
    return out;
  }

  void check_name(const std::string& name) const {
    bool plain = !name.empty() && name.front() != '/' && !text::find_invalid_utf8(name);
    for (const char c : name)
      plain = plain && static_cast<unsigned char>(c) >= 0x20 && c != '\\';
    for (const std::string& part : text::split(name, '/'))
      plain = plain && part != "..";
    if (!plain) refuse(fmt::format("entry {} has a name that leads elsewhere", shown(name)));
  }

  /// Reads the 64-bit values of the fields that are too narrow, in order.
  void widen(Central& entry, std::string_view extra) const {
    while (extra.size() >= 4) {
      std::uint16_t id = 0, size = 0;
      std::memcpy(&id, extra.data(), 2);
      std::memcpy(&size, extra.data() + 2, 2);
      extra.remove_prefix(4);
      if (size > extra.size()) break;
      if (id == kZip64Field) {
        std::string_view values = extra.substr(0, size);
        for (std::uint64_t* field : {&entry.size, &entry.stored, &entry.local}) {
          if (*field != kSaturated || values.size() < 8) continue;
          std::memcpy(field, values.data(), 8);
          values.remove_prefix(8);
        }
        return;
      }
      extra.remove_prefix(size);
    }
  }

  [[nodiscard]] ZipEntry check_local(const Central& entry) const {
    const std::uint64_t limit = directory_.begin, at = entry.local;
    if (at > limit || limit - at < kLocalBytes || number<std::uint32_t>(at) != kLocal)
      refuse(
          fmt::format("entry {} does not begin at byte {}, as it claims", shown(entry.name), at));
    const std::uint64_t name_bytes = number<std::uint16_t>(at + 26),
                        extra_bytes = number<std::uint16_t>(at + 28);
    const std::uint64_t begin = at + kLocalBytes + name_bytes + extra_bytes;
    if (begin > limit || entry.size > limit - begin) {
      refuse(fmt::format("entry {} claims {} bytes at byte {}, of {} before the directory",
                         shown(entry.name),
                         entry.size,
                         begin,
                         limit));
    }
    if (text(at + kLocalBytes, name_bytes) != entry.name)
      refuse(fmt::format("entry {} has another name in its own header", shown(entry.name)));
    return {begin, entry.size};
  }

  void check_overlaps(const std::map<std::string, ZipEntry, std::less<>>& entries) const {
    std::vector<std::pair<ZipEntry, std::string_view>> sorted;
    for (const auto& [name, entry] : entries)
      sorted.emplace_back(entry, name);
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first.begin, a.first.size) < std::pair(b.first.begin, b.first.size);
    });
    std::uint64_t at = 0;
    for (const auto& [entry, name] : sorted) {
      if (entry.begin < at) refuse(fmt::format("entry {} lies inside of another one", shown(name)));
      at = entry.begin + entry.size;
    }
  }

  std::string_view file_;
  const std::string& source_;
  Directory directory_;
};

}  // namespace

std::map<std::string, ZipEntry, std::less<>> read_zip(std::span<const std::byte> file,
                                                      const std::string& source) {
  return Reader(file, source).read();
}

}  // namespace tessera::interop

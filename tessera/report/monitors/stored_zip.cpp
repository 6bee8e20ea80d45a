// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/monitors/stored_zip.h"

#include <cstdint>
#include <limits>

#include <fmt/format.h>
#include <zlib.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/protobuf.h"
#include "tessera/report/appended_file.h"

namespace tessera::report {
namespace {

constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr int kVersion = 20;       // version needed to extract: 2.0
constexpr int kDate = 1 << 5 | 1;  // 1980-01-01, so that the same files give the same bytes

void append_le16(std::string& out, std::size_t value) {
  out += static_cast<char>(value & 0xff);
  out += static_cast<char>(value >> 8 & 0xff);
}

/// The fields that the local and the central header have in common.
std::string facts(const std::string& name, std::uint32_t crc, std::uint32_t size) {
  std::string out;
  append_le16(out, kVersion);
  append_le16(out, 0);  // flags
  append_le16(out, 0);  // stored
  append_le16(out, 0);  // time
  append_le16(out, kDate);
  append_le32(out, crc);
  append_le32(out, size);
  append_le32(out, size);
  append_le16(out, name.size());
  append_le16(out, 0);  // extra field
  return out;
}

}  // namespace

void write_stored_zip(const std::filesystem::path& path,
                      const std::vector<std::pair<std::string, std::filesystem::path>>& files) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  std::uint64_t total = 0;
  for (const auto& [name, file] : files)
    total += std::filesystem::file_size(file) + 256 + 2 * name.size();
  TESSERA_REQUIRE(total < kMost,
                  Io,
                  fmt::format("{} would be larger than 4 GiB", path.string()),
                  fmt::format("zip the files in {} yourself", path.parent_path().string()));
  std::filesystem::path draft = path;
  draft += ".tmp";
  std::filesystem::remove(draft);
  std::string central;
  std::uint64_t at = 0;
  {
    AppendedFile out(draft);
    for (const auto& [name, file] : files) {
      const files::Mapped mapped(file);
      const std::string_view bytes = mapped.text();
      const auto size = static_cast<std::uint32_t>(bytes.size());
      const auto crc = static_cast<std::uint32_t>(
          ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(size)));
      const std::string both = facts(name, crc, size);
      append_le32(central, kCentral);
      append_le16(central, kVersion);
      central += both;
      append_le16(central, 0);  // comment
      append_le16(central, 0);  // disk
      append_le16(central, 0);  // internal attributes
      append_le32(central, 0);  // external attributes
      append_le32(central, static_cast<std::uint32_t>(at));
      central += name;
      std::string head;
      append_le32(head, kLocal);
      head += both + name;
      out.append(head);
      out.append(bytes);
      at += head.size() + bytes.size();
    }
    std::string end = central;
    append_le32(end, kEnd);
    append_le32(end, 0);  // disks
    append_le16(end, files.size());
    append_le16(end, files.size());
    append_le32(end, static_cast<std::uint32_t>(central.size()));
    append_le32(end, static_cast<std::uint32_t>(at));
    append_le16(end, 0);  // comment
    out.append(end);
  }
  files::sync(draft);
  std::filesystem::rename(draft, path);
}

}  // namespace tessera::report

// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/text_encoding.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/utf8.h"
#include "tessera/data/records.h"

namespace tessera::data {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kLittleMark = "\xff\xfe"sv, kBigMark = "\xfe\xff"sv;

/// The code units of UTF-16 in bytes.
class Units {
 public:
  Units(std::string_view bytes, bool big) : bytes_(bytes), big_(big) {}
  [[nodiscard]] std::size_t size() const { return bytes_.size() / 2; }
  [[nodiscard]] std::uint32_t at(std::size_t index) const {
    const auto first = static_cast<std::uint8_t>(bytes_[2 * index]);
    const auto second = static_cast<std::uint8_t>(bytes_[2 * index + 1]);
    return big_ ? std::uint32_t{first} << 8 | second : std::uint32_t{second} << 8 | first;
  }

 private:
  std::string_view bytes_;
  bool big_;
};

std::string from_utf16(std::string_view bytes, bool big, const std::string& name) {
  const auto refuse = [&](std::size_t unit) {
    throw Error(Error::Kind::Data,
                fmt::format("{}: the file is not UTF-16 from byte {} on", name, 2 * unit),
                "convert it to UTF-8 with the program that wrote it");
  };
  const Units units(bytes, big);
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t i = 1; i < units.size(); ++i) {  // behind the mark
    const std::uint32_t unit = units.at(i);
    const bool high = unit >= 0xD800 && unit < 0xDC00, low = unit >= 0xDC00 && unit < 0xE000;
    const std::uint32_t next = high && i + 1 < units.size() ? units.at(i + 1) : 0;
    if (low || (high && (next < 0xDC00 || next >= 0xE000))) refuse(i);
    text::append_utf8(out, high ? 0x10000 + ((unit - 0xD800) << 10) + (next - 0xDC00) : unit);
    i += high ? 1 : 0;
  }
  if (bytes.size() % 2 != 0) refuse(units.size());
  return out;
}

}  // namespace

std::string_view plain_text(std::string_view bytes, const std::string& name, std::string& kept) {
  const std::string_view text = decompressed(bytes, name, kept);
  TESSERA_REQUIRE(!text.starts_with("\xff\xfe\0\0"sv) && !text.starts_with("\0\0\xfe\xff"sv),
                  Data,
                  fmt::format("{}: the file is UTF-32", name),
                  fmt::format("convert it: iconv -f UTF-32 -t UTF-8 {}", name));
  const bool big = text.starts_with(kBigMark);
  if (!big && !text.starts_with(kLittleMark)) return text;
  std::string made = from_utf16(text, big, name);
  kept = std::move(made);
  return kept;
}

}  // namespace tessera::data

// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/python_text.h"

#include <algorithm>
#include <array>
#include <utility>

#include <utf8proc.h>

namespace tessera::text::chat {
namespace {

std::size_t length_at(std::string_view text, std::size_t at) {
  utf8proc_int32_t code = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
  const auto read = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  return read > 0 ? static_cast<std::size_t>(read) : 1;
}

template <class F>
std::string map_codes(std::string_view text, F&& change) {
  std::string out;
  out.reserve(text.size());
  for (const std::string_view character : characters(text)) {
    const std::int32_t code = code_point(character);
    if (code < 0) {
      out += character;
    } else {
      out += change(code);
    }
  }
  return out;
}

std::string upper_of(std::int32_t code) {
  if (code == 0xDF) return "SS";  // the only first letter whose title case has two characters
  return encode_utf8(utf8proc_toupper(code));
}
std::string title_of(std::int32_t code) {
  if (code == 0xDF) return "Ss";
  return encode_utf8(utf8proc_totitle(code));
}
std::string lower_of(std::int32_t code) {
  return encode_utf8(utf8proc_tolower(code));
}

bool has(std::string_view chars, std::string_view character) {
  const auto all = characters(chars);
  return std::find(all.begin(), all.end(), character) != all.end();
}

}  // namespace

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = length_at(text, at);
    out.push_back(text.substr(at, length));
    at += length;
  }
  return out;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count)
    at += length_at(text, at);
  return count;
}

std::int32_t code_point(std::string_view character) {
  utf8proc_int32_t code = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(character.data());
  utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(character.size()), &code);
  return code;
}

std::string encode_utf8(std::int32_t code) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto length = utf8proc_encode_char(code, bytes.data());
  return {reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(length)};
}

bool is_space(std::int32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13) || (code >= 28 && code <= 31);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_printable(std::int32_t code) {
  if (code < 0x80) return code >= ' ' && code != 0x7F;
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
      return false;
    default:
      return true;
  }
}

bool is_alpha(std::int32_t code) {
  if (code < 0) return false;
  const auto category = utf8proc_category(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(std::int32_t code) {
  return code >= 0 && utf8proc_category(code) == UTF8PROC_CATEGORY_ND;
}
bool is_upper(std::int32_t code) {
  return code >= 0 && utf8proc_category(code) == UTF8PROC_CATEGORY_LU;
}
bool is_lower(std::int32_t code) {
  return code >= 0 && utf8proc_category(code) == UTF8PROC_CATEGORY_LL;
}
bool is_cased(std::int32_t code) {
  return is_upper(code) || is_lower(code) ||
         (code >= 0 && utf8proc_category(code) == UTF8PROC_CATEGORY_LT);
}

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = length_at(text, 0);
    if (!is_space(code_point(text.substr(0, length)))) break;
    text.remove_prefix(length);
  }
  return text;
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && text.size() - begin < 4 &&
           (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U)
      --begin;
    if (!is_space(code_point(text.substr(begin)))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::string_view strip_left(std::string_view text, std::string_view chars) {
  while (!text.empty() && has(chars, text.substr(0, length_at(text, 0))))
    text.remove_prefix(length_at(text, 0));
  return text;
}

std::string_view strip_right(std::string_view text, std::string_view chars) {
  std::size_t kept = text.size();
  const auto all = characters(text);
  for (auto it = all.rbegin(); it != all.rend() && has(chars, *it); ++it)
    kept -= it->size();
  return text.substr(0, kept);
}

std::string upper(std::string_view text) {
  return map_codes(text, upper_of);
}
std::string lower(std::string_view text) {
  return map_codes(text, lower_of);
}

std::string capitalize(std::string_view text) {
  bool first = true;
  return map_codes(text, [&](std::int32_t code) {
    return std::exchange(first, false) ? title_of(code) : lower_of(code);
  });
}

std::string title(std::string_view text) {
  bool inside = false;
  return map_codes(text, [&](std::int32_t code) {
    std::string made = inside ? lower_of(code) : title_of(code);
    inside = is_cased(code);
    return made;
  });
}

std::string jinja_title(std::string_view text) {
  bool inside = false;
  return map_codes(text, [&](std::int32_t code) {
    const bool breaks =
        is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
    std::string made = inside || breaks ? lower_of(code) : upper_of(code);
    inside = !breaks;
    return made;
  });
}

std::string swapcase(std::string_view text) {
  return map_codes(text, [](std::int32_t code) {
    if (is_upper(code)) return lower_of(code);
    return is_lower(code) ? upper_of(code) : encode_utf8(code);
  });
}

std::vector<std::string> split_words(std::string_view text, std::int64_t most, bool from_right) {
  std::vector<std::string> out;
  const auto cuts_left = [&] { return most < 0 || static_cast<std::int64_t>(out.size()) < most; };
  text = from_right ? strip_right(text) : strip_left(text);
  while (!text.empty()) {
    if (!cuts_left()) {
      out.emplace_back(from_right ? strip_right(text) : text);
      break;
    }
    const auto all = characters(text);
    std::size_t length = 0;
    if (from_right) {
      for (auto it = all.rbegin(); it != all.rend() && !is_space(code_point(*it)); ++it)
        length += it->size();
      out.emplace_back(text.substr(text.size() - length));
      text = strip_right(text.substr(0, text.size() - length));
    } else {
      // Words are found in one pass, so the time is linear.
      std::size_t at = 0;
      for (std::size_t i = 0; i < all.size() && cuts_left();) {
        length = 0;
        while (i < all.size() && !is_space(code_point(all[i])))
          length += all[i++].size();
        out.emplace_back(text.substr(at, length));
        at += length;
        while (i < all.size() && is_space(code_point(all[i])))
          at += all[i++].size();
      }
      text.remove_prefix(at);
    }
  }
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> split_by(std::string_view text,
                                  std::string_view separator,
                                  std::int64_t most,
                                  bool from_right) {
  std::vector<std::string> out;
  while (most < 0 || static_cast<std::int64_t>(out.size()) < most) {
    const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    if (from_right) {
      out.emplace_back(text.substr(at + separator.size()));
      text = text.substr(0, at);
    } else {
      out.emplace_back(text.substr(0, at));
      text.remove_prefix(at + separator.size());
    }
  }
  out.emplace_back(text);
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> out;
  std::string line;
  const auto all = characters(text);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int32_t code = code_point(all[i]);
    const bool ends = (code >= 10 && code <= 13) || (code >= 28 && code <= 30) || code == 0x85 ||
                      code == 0x2028 || code == 0x2029;
    if (!ends) {
      line += all[i];
      continue;
    }
    std::string end(all[i]);
    if (code == '\r' && i + 1 < all.size() && all[i + 1] == "\n") end += all[++i];
    out.push_back(keep_ends ? line + end : line);
    line.clear();
  }
  if (!line.empty()) out.push_back(std::move(line));
  return out;
}

std::string replace(std::string_view text,
                    std::string_view from,
                    std::string_view to,
                    std::int64_t most) {
  std::string out;
  std::int64_t done = 0;
  if (from.empty()) {  // inserts between all characters
    for (const std::string_view character : characters(text)) {
      if (most < 0 || done++ < most) out += to;
      out += character;
    }
    if (most < 0 || done < most) out += to;
    return out;
  }
  while (most < 0 || done < most) {
    const std::size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
    ++done;
  }
  out += text;
  return out;
}

}  // namespace tessera::text::chat

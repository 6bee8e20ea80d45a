// SPDX-License-Identifier: Apache-2.0
// torch.save files constructed opcode by opcode, so that each can be invalid in one place.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace tessera::interop::test {

/// Returns the given number of bytes of a number, least significant first.
inline std::string le(std::uint64_t value, std::size_t bytes) {
  return {reinterpret_cast<const char*>(&value), bytes};
}

// Opcodes; each function returns the text that pushes one value.
namespace op {
inline const std::string kNone = "N", kTrue = "\x88", kFalse = "\x89", kDict = "}", kList = "]",
                         kNothing = ")", kCall = "R";

inline std::string text(const std::string& value) {
  return "X" + le(value.size(), 4) + value;
}
inline std::string integer(std::int64_t value) {
  return "\x8a\x08" + le(static_cast<std::uint64_t>(value), 8);
}
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string tuple(const std::vector<std::string>& items) {
  std::string out = "(";
  for (const std::string& item : items)
    out += item;
  return out + "t";
}
inline std::string list_of(const std::vector<std::string>& items) {
  std::string out = "](";
  for (const std::string& item : items)
    out += item;
  return out + "e";
}
inline std::string sizes(const std::vector<std::int64_t>& values) {
  std::vector<std::string> items;
  for (const std::int64_t value : values)
    items.push_back(integer(value));
  return tuple(items);
}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string out = "}(";
  for (const auto& [key, value] : members)
    out += text(key) + value;
  return out + "u";
}
inline std::string storage(const std::string& type, const std::string& key, std::int64_t numel) {
  return tuple({text("storage"), global("torch", type), text(key), text("cpu"), integer(numel)}) +
         "Q";
}
inline std::string tensor(const std::string& storage,
                          std::int64_t offset,
                          const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& strides) {
  return global("torch._utils", "_rebuild_tensor_v2") +
         tuple({storage,
                integer(offset),
                sizes(shape),
                sizes(strides),
                kFalse,
                global("collections", "OrderedDict") + kNothing + kCall}) +
         kCall;
}
}  // namespace op

inline std::string pickle_of(const std::string& value) {
  return "\x80\x02" + value + ".";
}

/// One entry of a zip file, and the false claims of its two headers.
struct ZipPart {
  std::string name, content;
  std::string local_name = name;
  std::uint16_t method = 0, flags = 0;
  std::uint64_t stored = content.size(), size = content.size();
  std::int64_t local = -1;         ///< claimed position of the local header
  std::uint16_t extra_bytes = 0;   ///< number of extra bytes in its local header
  std::string central_extra = {};  ///< written as it is
};

struct ZipLies {
  std::int64_t entries = -1, directory_bytes = -1, directory_begin = -1;
  std::string comment, before_end;
};

inline std::string zip_of(const std::vector<ZipPart>& parts, const ZipLies& lies = {}) {
  std::string out, directory;
  for (const ZipPart& part : parts) {
    const std::uint64_t begin = out.size();
    out += "PK\x03\x04" + le(0, 2) + le(part.flags, 2) + le(part.method, 2) + le(0, 4 + 4) +
           le(part.content.size(), 4) + le(part.content.size(), 4) + le(part.local_name.size(), 2) +
           le(part.extra_bytes, 2) + part.local_name + std::string(part.extra_bytes, 'Z') +
           part.content;
    directory += "PK\x01\x02" + le(0, 4) + le(part.flags, 2) + le(part.method, 2) + le(0, 4 + 4) +
                 le(part.stored, 4) + le(part.size, 4) + le(part.name.size(), 2) +
                 le(part.central_extra.size(), 2) + le(0, 2 + 2 + 2) + le(0, 4) +
                 le(part.local < 0 ? begin : static_cast<std::uint64_t>(part.local), 4) +
                 part.name + part.central_extra;
  }
  const auto or_true = [](std::int64_t lie, std::size_t truth) {
    return lie < 0 ? truth : static_cast<std::uint64_t>(lie);
  };
  const std::string end = "PK\x05\x06" + le(0, 4) + le(or_true(lies.entries, parts.size()), 2) +
                          le(or_true(lies.entries, parts.size()), 2) +
                          le(or_true(lies.directory_bytes, directory.size()), 4) +
                          le(or_true(lies.directory_begin, out.size()), 4) +
                          le(lies.comment.size(), 2) + lies.comment;
  return out + directory + lies.before_end + end;
}

/// Returns a torch.save file with this pickle and these storages "0", "1", ...
inline std::string torch_zip(const std::string& pickle,
                             const std::vector<std::string>& storages = {}) {
  std::vector<ZipPart> parts = {{"model/data.pkl", pickle}};
  for (std::size_t i = 0; i < storages.size(); ++i)
    parts.push_back({"model/data/" + std::to_string(i), storages[i]});
  parts.push_back({"model/version", "3\n"});
  return zip_of(parts);
}

/// The format before torch 1.6: the object, the keys, then the raw bytes of each storage.
inline std::string torch_legacy(const std::string& object,
                                const std::string& keys,
                                const std::string& storages,
                                std::int64_t protocol = 1001,
                                const std::string& little = "\x88") {
  return pickle_of("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") +
         pickle_of(op::integer(protocol)) + pickle_of(op::dict({{"little_endian", little}})) +
         pickle_of(object) + pickle_of(keys) + storages;
}

}  // namespace tessera::interop::test

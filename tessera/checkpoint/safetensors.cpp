// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/config/json.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kLengthBytes = 8;
constexpr std::size_t kMaxSkippedBytes = 1 << 16;
/// Types of the format that DType does not have.
constexpr std::array<std::string_view, 11> kForeignDtypes = {"F8_E5M2",
                                                             "F8_E4M3",
                                                             "F8_E8M0",
                                                             "F8_E4M3FNUZ",
                                                             "F8_E5M2FNUZ",
                                                             "C64",
                                                             "F4",
                                                             "F6_E2M3",
                                                             "F6_E3M2",
                                                             "F8_E4M3FN",
                                                             "C128"};

[[noreturn]] void refuse(const std::string& source,
                         const std::string& what,
                         const std::string& fix = "") {
  throw Error(Error::Kind::Format, source + ": " + what, fix);
}

std::string tensor(const TensorEntry& entry) {
  return "tensor " + JsonCursor::shown(entry.name);
}

DType read_dtype(const std::string& source, const std::string& name, const std::string& text) {
  if (const auto dtype = dtype_from_name(text)) return *dtype;
  const bool foreign =
      std::find(kForeignDtypes.begin(), kForeignDtypes.end(), text) != kForeignDtypes.end();
  refuse(source,
         fmt::format("tensor {} has dtype {}, which {}",
                     JsonCursor::shown(name),
                     JsonCursor::shown(text),
                     foreign ? "tessera does not read" : "is not a safetensors type"),
         foreign ? "convert the tensor to F32, BF16 or F16" : "");
}

TensorEntry read_entry(JsonCursor& json, const std::string& name) {
  TensorEntry entry{.name = name};
  json.within(tensor(entry));
  bool has_dtype = false, has_shape = false;
  std::vector<std::uint64_t> offsets;
  json.object([&](const std::string& key) {
    if (key == "dtype") {
      entry.dtype = read_dtype(json.source(), name, json.string());
      has_dtype = true;
    } else if (key == "shape") {
      json.array([&] {
        if (entry.shape.size() == kMaxDims) json.fail("a tensor of more than 64 dims");
        entry.shape.push_back(json.count());
      });
      has_shape = true;
    } else if (key == "data_offsets") {
      json.array([&] {
        if (offsets.size() == 2) json.fail("a third offset");
        offsets.push_back(static_cast<std::uint64_t>(json.count()));
      });
    } else {
      json::parse_strict(json.raw(kMaxSkippedBytes), json.source());
    }
  });
  if (!has_dtype || !has_shape || offsets.size() != 2) {
    refuse(json.source(), tensor(entry) + " lacks its dtype, shape or two data_offsets");
  }
  json.within("");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return entry;
}

void check_size(const std::string& source, const TensorEntry& entry, std::uint64_t data_bytes) {
  if (entry.begin > entry.end || entry.end > data_bytes) {
    refuse(source,
           fmt::format("{} claims bytes [{}, {}) of {} data bytes",
                       tensor(entry),
                       entry.begin,
                       entry.end,
                       data_bytes),
           "the file is truncated or its header is damaged: download it again");
  }
  const std::int64_t numel = checked_numel(entry.shape);
  if (numel < 0) {
    refuse(source,
           fmt::format(
               "{} has a shape [{}] that overflows", tensor(entry), fmt::join(entry.shape, ", ")));
  }
  const std::uint64_t bytes = static_cast<std::uint64_t>(numel) * size_of(entry.dtype);
  if (bytes != entry.end - entry.begin) {
    refuse(source,
           fmt::format("{} of {} [{}] needs {} bytes but claims {}",
                       tensor(entry),
                       name(entry.dtype),
                       fmt::join(entry.shape, ", "),
                       bytes,
                       entry.end - entry.begin));
  }
}

/// Returns the position of a dtype in the layout order of files: wide types first, so that all are
/// aligned.
int layout_order(DType dtype) {
  static constexpr std::array<DType, 13> kOrder = {DType::U64,
                                                   DType::I64,
                                                   DType::F64,
                                                   DType::F32,
                                                   DType::U32,
                                                   DType::I32,
                                                   DType::BF16,
                                                   DType::F16,
                                                   DType::U16,
                                                   DType::I16,
                                                   DType::I8,
                                                   DType::U8,
                                                   DType::Bool};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), dtype) - kOrder.begin());
}

std::string as_json(const std::string& text) {
  return json::Value::string(text).dump();
}

}  // namespace

std::int64_t checked_numel(const std::vector<std::int64_t>& shape) noexcept {
  std::int64_t product = 8, numel = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, std::max<std::int64_t>(size, 1), &product))
      return -1;
    numel = size == 0 ? 0 : numel * size;
  }
  return numel;
}

void require_plain_file(const fs::path& path, bool follow) {
  std::error_code failed;
  const auto status = follow ? fs::status(path, failed) : fs::symlink_status(path, failed);
  if (status.type() == fs::file_type::not_found) {
    throw Error(Error::Kind::Format, path.string() + " does not exist");
  }
  if (status.type() != fs::file_type::regular) {
    throw Error(Error::Kind::Format, path.string() + " is not a plain file");
  }
}

SafetensorsFile::SafetensorsFile(const fs::path& path, std::optional<std::uint64_t> header_xxh3)
    : path_(path) {
  require_plain_file(path, true);
  file_ = std::make_unique<files::Mapped>(path);
  read_header(header_xxh3);
  check_layout();
}

void SafetensorsFile::read_header(std::optional<std::uint64_t> xxh3) {
  const std::string source = path_.string();
  const std::string_view text = file_->text();
  if (text.size() < kLengthBytes) {
    refuse(source,
           fmt::format("{} bytes are too few for a safetensors file", text.size()),
           "download it again");
  }
  if (text.starts_with("version https://git-lfs")) {
    refuse(source, "it is Git LFS's pointer to a file, not the file", "run git lfs pull there");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), kLengthBytes);
  if (length > kMaxHeaderBytes || length > text.size() - kLengthBytes) {
    refuse(source,
           fmt::format("its header claims {} bytes; the file has {}, and the limit is {}",
                       length,
                       text.size() - kLengthBytes,
                       kMaxHeaderBytes),
           "this is not a safetensors file, or it is truncated: download it again");
  }
  data_begin_ = kLengthBytes + length;
  if (xxh3 && files::xxh3(file_->bytes().first(data_begin_)) != *xxh3) {
    refuse(
        source,
        fmt::format("its header is damaged: bytes 0 to {} of the file do not match their checksum",
                    data_begin_ - 1));
  }
  const std::string_view header = text.substr(kLengthBytes, length);
  if (header.empty() || header.front() != '{') refuse(source, "its header does not begin with '{'");
  JsonCursor json(header, source);
  json.object([&](const std::string& key) {
    if (key == "__metadata__") {
      json.object([&](const std::string& name) { metadata_.emplace(name, json.string()); });
    } else {
      entries_.push_back(read_entry(json, key));
    }
  });
  json.end();
}

void SafetensorsFile::check_layout() {
  const std::string source = path_.string();
  const std::uint64_t data_bytes = file_->bytes().size() - data_begin_;
  for (const auto& entry : entries_)
    check_size(source, entry, data_bytes);
  std::sort(entries_.begin(), entries_.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t at = 0;
  for (const auto& entry : entries_) {
    if (entry.begin != at) {
      refuse(
          source,
          fmt::format("{} begins at byte {} of the data, {} the tensor before it, which ends at {}",
                      tensor(entry),
                      entry.begin,
                      entry.begin < at ? "inside" : "leaving a hole after",
                      at));
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    refuse(source,
           fmt::format("{} bytes follow the last tensor", data_bytes - at),
           "the file is damaged or something was appended to it");
  }
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0U);
  std::sort(by_name_.begin(), by_name_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return entries_[a].name < entries_[b].name;
  });
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name, [this](std::uint32_t i, std::string_view n) {
        return entries_[i].name < n;
      });
  return at != by_name_.end() && entries_[*at].name == name ? &entries_[*at] : nullptr;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return file_->bytes().subspan(data_begin_ + entry.begin, entry.end - entry.begin);
}

std::string lay_out(std::vector<TensorEntry>& entries,
                    const std::map<std::string, std::string>& metadata) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(layout_order(a.dtype), std::string_view(a.name)) <
           std::pair(layout_order(b.dtype), std::string_view(b.name));
  });
  std::vector<std::string> members;
  if (!metadata.empty()) {
    std::vector<std::string> texts;
    for (const auto& [key, value] : metadata)
      texts.push_back(as_json(key) + ":" + as_json(value));
    members.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(texts, ",")));
  }
  std::uint64_t at = 0;
  std::set<std::string_view> names = {"__metadata__"};
  for (auto& entry : entries) {
    TESSERA_REQUIRE(names.insert(entry.name).second,
                    Bug,
                    fmt::format("the name {} is duplicate or reserved", as_json(entry.name)),
                    "");
    const std::int64_t numel = checked_numel(entry.shape);
    TESSERA_ASSERT(numel >= 0);
    entry.begin = at;
    entry.end = at += static_cast<std::uint64_t>(numel) * size_of(entry.dtype);
    members.push_back(fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                                  as_json(entry.name),
                                  name(entry.dtype),
                                  fmt::join(entry.shape, ","),
                                  entry.begin,
                                  entry.end));
  }
  std::string header = fmt::format("{{{}}}", fmt::join(members, ","));
  header.append((kLengthBytes - header.size() % kLengthBytes) % kLengthBytes, ' ');
  TESSERA_REQUIRE(
      header.size() <= kMaxHeaderBytes,
      Unsupported,
      fmt::format(
          "{} tensors need a header of more than {} bytes", entries.size(), kMaxHeaderBytes),
      "write them into several files");
  const std::uint64_t length = header.size();
  std::string out(kLengthBytes, '\0');
  std::memcpy(out.data(), &length, kLengthBytes);
  return out + header;
}

void write_safetensors(const fs::path& path,
                       const std::vector<TensorBytes>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::map<std::string_view, std::span<const std::byte>> bytes;
  std::vector<TensorEntry> entries;
  for (const auto& tensor : tensors) {
    bytes[tensor.name] = tensor.bytes;
    entries.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  const std::string header = lay_out(entries, metadata);
  const std::uint64_t data_bytes = entries.empty() ? 0 : entries.back().end;
  const auto output = real_storage().create(path, header.size() + data_bytes);
  output->append(std::as_bytes(std::span(header)));
  for (const auto& entry : entries) {
    TESSERA_ASSERT(bytes[entry.name].size() == entry.end - entry.begin);
    output->append(bytes[entry.name]);
  }
  output->sync();
}

}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/gguf/file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/checkpoint/safetensors_header.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using checkpoint::JsonCursor;

constexpr const char* kFix = "the file is damaged or was cut short: fetch it again";
constexpr std::string_view kMagic = "GGUF";
/// The minimum size of a key with its value, and of a tensor's entry.
constexpr std::uint64_t kLeastValue = 8 + 4 + 1, kLeastTensor = 8 + 4 + 8 + 4 + 8;
constexpr std::uint64_t kMaxKeyBytes = 65535, kMaxAlignment = 1 << 20, kDefaultAlignment = 32;
constexpr std::int64_t kMinAlignment = 8;
constexpr std::uint32_t kMaxDims = 4;

std::size_t width_of(GgufType type) {
  switch (type) {
    case GgufType::U8:
    case GgufType::I8:
    case GgufType::Bool:
      return 1;
    case GgufType::U16:
    case GgufType::I16:
      return 2;
    case GgufType::U32:
    case GgufType::I32:
    case GgufType::F32:
      return 4;
    case GgufType::U64:
    case GgufType::I64:
    case GgufType::F64:
      return 8;
    case GgufType::String:
    case GgufType::Array:
      return 0;
  }
  return 0;
}

/// Reads the bytes of a file from front to back.
class Cursor {
 public:
  Cursor(const GgufFile& file, std::span<const std::byte> bytes) : file_(file), bytes_(bytes) {}

  [[nodiscard]] std::uint64_t at() const { return at_; }
  [[nodiscard]] std::uint64_t left() const { return bytes_.size() - at_; }

  std::span<const std::byte> take(std::uint64_t count, std::string_view what) {
    if (count > left())
      file_.refuse(
          fmt::format("{} at byte {} needs {} bytes, and {} are left", what, at_, count, left()));
    const auto out = bytes_.subspan(at_, count);
    at_ += count;
    return out;
  }
  template <class T>
  T number(std::string_view what) {
    T out;
    std::memcpy(&out, take(sizeof(T), what).data(), sizeof(T));
    return out;
  }
  std::string_view text(std::string_view what, std::uint64_t limit) {
    const auto size = number<std::uint64_t>(what);
    if (size > limit) file_.refuse(fmt::format("{} at byte {} has {} bytes", what, at_, size));
    const auto bytes = take(size, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  const GgufFile& file_;
  std::span<const std::byte> bytes_;
  std::uint64_t at_ = 0;
};

GgufType read_type(Cursor& in, const GgufFile& file, std::string_view key) {
  const auto type = in.number<std::uint32_t>("a value type");
  if (type > static_cast<std::uint32_t>(GgufType::F64))
    file.refuse(fmt::format("key {} has the unknown value type {}", JsonCursor::shown(key), type));
  return static_cast<GgufType>(type);
}

GgufValue read_value(Cursor& in, const GgufFile& file, std::string_view key) {
  GgufValue out;
  out.type = out.of = read_type(in, file, key);
  if (out.is_array()) {
    out.of = read_type(in, file, key);
    out.count = in.number<std::uint64_t>("the length of an array");
    if (out.of == GgufType::Array)
      file.refuse(fmt::format("key {} is an array of arrays", JsonCursor::shown(key)));
  }
  const bool strings = out.of == GgufType::String;
  const std::uint64_t least = strings ? sizeof(std::uint64_t) : width_of(out.of);
  if (out.count > in.left() / least)
    file.refuse(fmt::format("key {} has {} items, and {} bytes are left",
                            JsonCursor::shown(key),
                            out.count,
                            in.left()));
  if (!strings) {
    out.data = in.take(out.count * least, "a value");
    return out;
  }
  out.strings.reserve(out.count);
  for (std::uint64_t i = 0; i < out.count; ++i)
    out.strings.push_back(in.text("a string", in.left()));
  return out;
}

GgufTensor read_tensor(Cursor& in, const GgufFile& file, std::uint64_t& offset) {
  GgufTensor out;
  out.name = in.text("the name of a tensor", kMaxKeyBytes);
  const auto refuse = [&](const std::string& what) {
    file.refuse(fmt::format("tensor {} {}", JsonCursor::shown(out.name), what));
  };
  if (out.name.empty() || text::find_invalid_utf8(out.name)) refuse("has no name in UTF-8");
  const auto dims = in.number<std::uint32_t>("the number of dims");
  if (dims < 1 || dims > kMaxDims) refuse(fmt::format("has {} dims, not 1 to 4", dims));
  for (std::uint32_t d = 0; d < dims; ++d) {
    const auto size = in.number<std::int64_t>("a dim");
    if (size < 1) refuse(fmt::format("has a dim of {}", size));
    out.shape.insert(out.shape.begin(), size);
  }
  if (checkpoint::checked_numel(out.shape) < 0)
    refuse(fmt::format("has a shape [{}] that overflows", fmt::join(out.shape, ", ")));
  const auto type = in.number<std::uint32_t>("the type of a tensor");
  const auto block = ggml_block(type);
  TESSERA_REQUIRE(block.has_value(),
                  Unsupported,
                  fmt::format("{}: tensor {} is of {}, which is not read",
                              file.path().string(),
                              JsonCursor::shown(out.name),
                              ggml_type_name(type)),
                  "take a file of the model in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                  "Q4_K, Q5_K or Q6_K");
  out.type = static_cast<GgmlType>(type);
  if (out.shape.back() % block->elements != 0)
    refuse(fmt::format("has rows of {} elements, no multiple of the {} of a block of {}",
                       out.shape.back(),
                       block->elements,
                       block->name));
  offset = in.number<std::uint64_t>("the offset of a tensor");
  return out;
}

/// The bytes of the tensor's elements.
std::uint64_t bytes_of(const GgufTensor& tensor) {
  const GgmlBlock block = ggml_block(tensor.type);
  return static_cast<std::uint64_t>(checkpoint::checked_numel(tensor.shape) / block.elements *
                                    block.bytes);
}

template <class T>
T at(std::span<const std::byte> data, std::uint64_t index) {
  T out;
  std::memcpy(&out, data.data() + index * sizeof(T), sizeof(T));
  return out;
}

/// Converts a float to its shortest decimal, such as 1e-5, because nobody wrote its exact value.
double decimal_of(float value) {
  const std::string text = fmt::format("{}", value);
  double out = value;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

}  // namespace

std::optional<std::int64_t> GgufValue::integer(std::uint64_t index) const {
  if (index >= count) return std::nullopt;
  switch (of) {
    case GgufType::U8:
    case GgufType::Bool:
      return at<std::uint8_t>(data, index);
    case GgufType::I8:
      return at<std::int8_t>(data, index);
    case GgufType::U16:
      return at<std::uint16_t>(data, index);
    case GgufType::I16:
      return at<std::int16_t>(data, index);
    case GgufType::U32:
      return at<std::uint32_t>(data, index);
    case GgufType::I32:
      return at<std::int32_t>(data, index);
    case GgufType::I64:
      return at<std::int64_t>(data, index);
    case GgufType::U64: {
      const auto value = at<std::uint64_t>(data, index);
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufValue::number(std::uint64_t index) const {
  if (index >= count) return std::nullopt;
  if (of == GgufType::F32) return decimal_of(at<float>(data, index));
  if (of == GgufType::F64) return at<double>(data, index);
  const auto whole = integer(index);
  return whole ? std::optional(static_cast<double>(*whole)) : std::nullopt;
}

GgufFile::GgufFile(const fs::path& path) : path_(path) {
  checkpoint::require_plain_file(path, true);
  map_ = std::make_shared<const files::Mapped>(path);
  Cursor in(*this, map_->bytes());
  const auto magic = in.take(kMagic.size(), "the first word");
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) refuse("is not a GGUF file");
  version_ = in.number<std::uint32_t>("the version");
  TESSERA_REQUIRE(version_ == 2 || version_ == 3,
                  Unsupported,
                  fmt::format("{}: GGUF of version {}{}; 2 and 3 in little endian are read",
                              path.string(),
                              version_,
                              (version_ & 0xFFFFU) == 0 ? " (a file in big endian)" : ""),
                  "convert the model again with a newer converter");
  const auto tensors = in.number<std::uint64_t>("the number of tensors");
  const auto values = in.number<std::uint64_t>("the number of keys");
  if (values > in.left() / kLeastValue || tensors > in.left() / kLeastTensor)
    refuse(fmt::format("claims {} keys and {} tensors in {} bytes", values, tensors, in.left()));
  for (std::uint64_t i = 0; i < values; ++i) {
    const std::string key(in.text("a key", kMaxKeyBytes));
    if (key.empty() || text::find_invalid_utf8(key)) refuse("has a key that is not UTF-8");
    if (!values_.emplace(key, read_value(in, *this, key)).second)
      refuse(fmt::format("has the key {} twice", JsonCursor::shown(key)));
  }
  const std::int64_t alignment = integer("general.alignment").value_or(kDefaultAlignment);
  if (alignment < kMinAlignment || alignment > static_cast<std::int64_t>(kMaxAlignment) ||
      (alignment & (alignment - 1)) != 0)
    refuse(fmt::format("has an alignment of {}, no power of two from 8 to 2^20", alignment));
  std::vector<std::uint64_t> offsets(tensors);
  tensors_.reserve(tensors);
  for (std::uint64_t& offset : offsets) {
    tensors_.push_back(read_tensor(in, *this, offset));
    const std::string& name = tensors_.back().name;
    if (!by_name_.emplace(name, tensors_.size() - 1).second)
      refuse(fmt::format("has the tensor {} twice", JsonCursor::shown(name)));
  }
  if (tensors > 0) place_tensors(in.at(), static_cast<std::uint64_t>(alignment), offsets);
}

void GgufFile::place_tensors(std::uint64_t header_end,
                             std::uint64_t alignment,
                             const std::vector<std::uint64_t>& offsets) {
  const std::uint64_t begin = (header_end + alignment - 1) / alignment * alignment;
  if (begin > map_->bytes().size()) refuse("ends before its first tensor");
  const auto data = map_->bytes().subspan(begin);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::uint64_t bytes = bytes_of(tensors_[i]);
    const std::string name = JsonCursor::shown(tensors_[i].name);
    if (offsets[i] % alignment != 0)
      refuse(fmt::format("tensor {} begins at {}, no multiple of {}", name, offsets[i], alignment));
    if (offsets[i] > data.size() || bytes > data.size() - offsets[i])
      refuse(fmt::format("tensor {} has {} bytes from {} on, and there are {} in all",
                         name,
                         bytes,
                         offsets[i],
                         data.size()));
    tensors_[i].data = data.subspan(offsets[i], bytes);
    taken.emplace_back(offsets[i], offsets[i] + bytes);
  }
  std::sort(taken.begin(), taken.end());
  for (std::size_t i = 1; i < taken.size(); ++i) {
    if (taken[i].first < taken[i - 1].second)
      refuse(fmt::format("two tensors overlap at byte {} of the data", taken[i].first));
  }
}

const GgufTensor* GgufFile::tensor(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto out = value->is_array() ? std::nullopt : value->integer();
  if (!out) refuse(fmt::format("key {} is not an integer", key));
  return out;
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto out = value->is_array() ? std::nullopt : value->number();
  if (!out) refuse(fmt::format("key {} is not a number", key));
  if (!std::isfinite(*out)) refuse(fmt::format("key {} is {}, no finite number", key, *out));
  return out;
}

std::optional<bool> GgufFile::flag(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::Bool) refuse(fmt::format("key {} is not true or false", key));
  return value->integer() != 0;
}

std::optional<std::string> GgufFile::text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::String || text::find_invalid_utf8(value->strings.front()))
    refuse(fmt::format("key {} is not UTF-8 text", key));
  return std::string(value->strings.front());
}

const std::vector<std::string_view>* GgufFile::texts(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return nullptr;
  const bool valid = value->is_array() && value->of == GgufType::String &&
                     std::none_of(value->strings.begin(), value->strings.end(), [](auto text) {
                       return text::find_invalid_utf8(text).has_value();
                     });
  if (!valid) refuse(fmt::format("key {} is not an array of UTF-8 strings", key));
  return &value->strings;
}

void GgufFile::refuse(const std::string& what) const {
  throw Error(Error::Kind::Format, fmt::format("{}: {}", path_.string(), what), kFix);
}

}  // namespace tessera::interop

// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/export.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/config/json.h"
#include "tessera/interop/torch/value.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

std::int64_t numel(const checkpoint::StreamedTensor& tensor) {
  const std::int64_t count = checkpoint::checked_numel(tensor.shape);
  TESSERA_ASSERT(count >= 0);
  return count;
}

/// Calls each(bytes) for all bytes of the tensor, piece by piece.
template <class Each>
void stream(const checkpoint::StreamedTensor& tensor,
            const checkpoint::Written& written,
            Each each) {
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
  const std::int64_t all = numel(tensor), step = kPieceBytes / width;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(all, step) * width));
  for (std::int64_t at = 0; at < all; at += step) {
    const std::int64_t end = std::min(at + step, all);
    const auto piece = std::span(buffer).first(static_cast<std::size_t>((end - at) * width));
    tensor.read(at, end, piece.data());
    each(piece);
    written(piece.size());
  }
}

using Tensors = std::vector<const checkpoint::StreamedTensor*>;

void write_shard(const fs::path& path, const Tensors& tensors, const checkpoint::Written& written) {
  std::map<std::string_view, const checkpoint::StreamedTensor*> by_name;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::vector<checkpoint::TensorEntry> entries;
  for (const checkpoint::StreamedTensor* tensor : tensors) {
    by_name.emplace(tensor->name, tensor);
    entries.push_back({.name = tensor->name, .dtype = tensor->dtype, .shape = tensor->shape});
    for (const std::string& alias : tensor->aliases)
      metadata.emplace(alias, tensor->name);
  }
  const std::string header = checkpoint::lay_out(entries, metadata);
  const std::uint64_t data_bytes = entries.empty() ? 0 : entries.back().end;
  const auto output = checkpoint::real_storage().create(path, header.size() + data_bytes);
  output->append(std::as_bytes(std::span(header)));
  for (const checkpoint::TensorEntry& entry : entries) {
    stream(*by_name.at(entry.name), written, [&](auto bytes) { output->append(bytes); });
  }
  output->sync();
}

std::vector<Tensors> shards_of(const std::vector<checkpoint::StreamedTensor>& tensors,
                               std::uint64_t limit) {
  std::vector<Tensors> out(1);
  std::uint64_t used = 0;
  for (const checkpoint::StreamedTensor& tensor : tensors) {
    if (!out.back().empty() && used + tensor.bytes() > limit) {
      out.emplace_back();
      used = 0;
    }
    out.back().push_back(&tensor);
    used += tensor.bytes();
  }
  return out;
}

/// CRC-32 of zip files. Source: ISO 3309, reflected, polynomial 0xEDB88320; eight bytes at a time
/// as in Kounavis and Berry 2005.
class Crc32 {
 public:
  void update(std::span<const std::byte> bytes) {
    const auto& t = tables();
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
      const auto at = [&](std::size_t k) { return std::to_integer<std::uint32_t>(bytes[i + k]); };
      const std::uint32_t low = state_ ^ (at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24);
      state_ = t[7][low & 0xFF] ^ t[6][low >> 8 & 0xFF] ^ t[5][low >> 16 & 0xFF] ^ t[4][low >> 24] ^
               t[3][at(4)] ^ t[2][at(5)] ^ t[1][at(6)] ^ t[0][at(7)];
    }
    for (; i < bytes.size(); ++i)
      state_ = state_ >> 8 ^ t[0][(state_ ^ std::to_integer<std::uint32_t>(bytes[i])) & 0xFF];
  }
  [[nodiscard]] std::uint32_t digest() const { return ~state_; }

 private:
  using Tables = std::array<std::array<std::uint32_t, 256>, 8>;
  static const Tables& tables() {
    static const Tables made = [] {
      Tables t{};
      for (std::uint32_t n = 0; n < 256; ++n) {
        std::uint32_t c = n;
        for (int bit = 0; bit < 8; ++bit)
          c = (c & 1U) != 0 ? 0xEDB88320U ^ c >> 1 : c >> 1;
        t[0][n] = c;
      }
      for (std::size_t k = 1; k < t.size(); ++k) {
        for (std::size_t n = 0; n < 256; ++n)
          t[k][n] = t[k - 1][n] >> 8 ^ t[0][t[k - 1][n] & 0xFF];
      }
      return t;
    }();
    return made;
  }
  std::uint32_t state_ = 0xFFFFFFFF;
};

std::string le(std::uint64_t value, std::size_t bytes) {
  std::string out(bytes, '\0');
  for (char& c : out) {
    c = static_cast<char>(value & 0xFF);
    value >>= 8;
  }
  return out;
}

/// Writes a zip file of uncompressed entries from front to back: checksums follow their data, as in
/// torch's files.
class ZipWriter {
 public:
  explicit ZipWriter(checkpoint::Output& output) : output_(output) {}

  /// `fill` receives a function that takes the entry's bytes, `size` of them in total.
  template <class Fill>
  void add(const std::string& name, std::uint64_t size, Fill fill) {
    const std::uint64_t begin = at_;
    const bool wide = size >= kSaturated;
    append(local_header(name, size, wide));
    Crc32 crc;
    fill([&](std::span<const std::byte> bytes) {
      crc.update(bytes);
      output_.append(bytes);
      at_ += bytes.size();
    });
    append("PK\x07\x08" + le(crc.digest(), 4) + le(size, wide ? 8 : 4) + le(size, wide ? 8 : 4));
    directory_ += central_header(name, size, begin, crc.digest());
    ++entries_;
  }
  void add(const std::string& name, const std::string& content) {
    add(name, content.size(), [&](auto sink) { sink(std::as_bytes(std::span(content))); });
  }
  void finish() {
    const std::uint64_t begin = at_, end = begin + directory_.size();
    append(directory_);
    append("PK\x06\x06" + le(44, 8) + le(kVersion, 2) + le(kVersion, 2) + le(0, 8) +
           le(entries_, 8) + le(entries_, 8) + le(directory_.size(), 8) + le(begin, 8));
    append("PK\x06\x07" + le(0, 4) + le(end, 8) + le(1, 4));
    const std::uint64_t count = std::min<std::uint64_t>(entries_, 0xFFFF);
    append("PK\x05\x06" + le(0, 4) + le(count, 2) + le(count, 2) +
           le(std::min(static_cast<std::uint64_t>(directory_.size()), kSaturated), 4) +
           le(std::min(begin, kSaturated), 4) + le(0, 2));
  }

 private:
  static constexpr std::uint64_t kSaturated = 0xFFFFFFFF, kVersion = 45, kAlignment = 64;
  /// Sizes and checksum follow the data; names are UTF-8.
  static constexpr std::uint64_t kFlags = 0x0808;

  void append(const std::string& text) {
    output_.append(std::as_bytes(std::span(text)));
    at_ += text.size();
  }
  // Padded so that the data begins at a multiple of 64 and can be mapped.
  [[nodiscard]] std::string local_header(const std::string& name,
                                         std::uint64_t size,
                                         bool wide) const {
    std::string extra;
    if (wide) extra = le(1, 2) + le(16, 2) + le(size, 8) + le(size, 8);
    const std::uint64_t used = at_ + 30 + name.size() + extra.size() + 4;
    const std::uint64_t padding = (kAlignment - used % kAlignment) % kAlignment;
    extra += "FB" + le(padding, 2) + std::string(padding, 'Z');
    const std::uint64_t shown = wide ? kSaturated : 0;
    return "PK\x03\x04" + le(kVersion, 2) + le(kFlags, 2) + le(0, 2) + le(0, 4) + le(0, 4) +
           le(shown, 4) + le(shown, 4) + le(name.size(), 2) + le(extra.size(), 2) + name + extra;
  }
  [[nodiscard]] static std::string central_header(const std::string& name,
                                                  std::uint64_t size,
                                                  std::uint64_t begin,
                                                  std::uint32_t crc) {
    std::string wide;
    if (size >= kSaturated) wide += le(size, 8) + le(size, 8);
    if (begin >= kSaturated) wide += le(begin, 8);
    const std::string extra = wide.empty() ? "" : le(1, 2) + le(wide.size(), 2) + wide;
    const std::string shown = le(std::min(size, kSaturated), 4);
    return "PK\x01\x02" + le(kVersion, 2) + le(kVersion, 2) + le(kFlags, 2) + le(0, 2) + le(0, 4) +
           le(crc, 4) + shown + shown + le(name.size(), 2) + le(extra.size(), 2) + le(0, 2) +
           le(0, 2) + le(0, 2) + le(0, 4) + le(std::min(begin, kSaturated), 4) + name + extra;
  }

  checkpoint::Output& output_;
  std::uint64_t at_ = 0, entries_ = 0;
  std::string directory_;
};

std::optional<std::string_view> storage_type(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return "DoubleStorage";
    case DType::F32:
      return "FloatStorage";
    case DType::F16:
      return "HalfStorage";
    case DType::BF16:
      return "BFloat16Storage";
    case DType::I64:
      return "LongStorage";
    case DType::I32:
      return "IntStorage";
    case DType::I16:
      return "ShortStorage";
    case DType::I8:
      return "CharStorage";
    case DType::U8:
      return "ByteStorage";
    case DType::Bool:
      return "BoolStorage";
    default:
      return std::nullopt;
  }
}

std::string text_of(const std::string& text) {
  return "X" + le(text.size(), 4) + text;
}
std::string number_of(std::int64_t value) {
  if (value >= INT32_MIN && value <= INT32_MAX)
    return "J" + le(static_cast<std::uint64_t>(value), 4);
  return "\x8a\x08" + le(static_cast<std::uint64_t>(value), 8);
}
std::string numbers_of(const std::vector<std::int64_t>& values) {
  std::string out = "(";
  for (const std::int64_t value : values)
    out += number_of(value);
  return out + "t";
}

/// The opcodes of one tensor: REDUCE of _rebuild_tensor_v2 over its storage, shape and strides.
std::string tensor_of(const checkpoint::StreamedTensor& tensor, std::size_t key) {
  std::vector<std::int64_t> strides(tensor.shape.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;)
    strides[d - 1] = strides[d] * std::max<std::int64_t>(tensor.shape[d], 1);
  const std::string storage = fmt::format("({}ctorch\n{}\n{}{}{}tQ",
                                          text_of("storage"),
                                          storage_type(tensor.dtype).value(),
                                          text_of(std::to_string(key)),
                                          text_of("cpu"),
                                          number_of(numel(tensor)));
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number_of(0) +
         numbers_of(tensor.shape) + numbers_of(strides) + "\x89" +
         "ccollections\nOrderedDict\n)RtR";
}

std::string pickle_of(const std::vector<checkpoint::StreamedTensor>& tensors) {
  std::string out =
      "\x80\x02"
      "ccollections\nOrderedDict\n)R(";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out += text_of(tensors[i].name) + tensor_of(tensors[i], i);
    for (const std::string& alias : tensors[i].aliases)
      out += text_of(alias) + tensor_of(tensors[i], i);
  }
  return out + "u.";
}

void require_storage_types(const Tensors& tensors) {
  for (const checkpoint::StreamedTensor* tensor : tensors) {
    TESSERA_REQUIRE(storage_type(tensor->dtype).has_value(),
                    Unsupported,
                    fmt::format("tensor {} is of {}, which torch's files have no word for",
                                tensor->name,
                                tessera::name(tensor->dtype)),
                    "write safetensors instead");
  }
}

void write_torch_zip(const fs::path& path,
                     const std::string& pickle,
                     const Tensors& tensors,
                     const checkpoint::Written& written) {
  std::uint64_t total = 0;
  for (const checkpoint::StreamedTensor* tensor : tensors)
    total += tensor->bytes();
  const auto output = checkpoint::real_storage().create(path, total);
  ZipWriter zip(*output);
  zip.add("pytorch_model/data.pkl", pickle);
  zip.add("pytorch_model/byteorder", "little");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    zip.add(fmt::format("pytorch_model/data/{}", i), tensors[i]->bytes(), [&](auto sink) {
      stream(*tensors[i], written, sink);
    });
  }
  zip.add("pytorch_model/version", "3\n");
  zip.finish();
  output->sync();
}

void collect(const TorchValue& value, Tensors& tensors) {
  if (value.kind == TorchValue::Kind::Tensor) tensors.push_back(value.data.get());
  for (const TorchValue& item : value.values)
    collect(item, tensors);
}

/// The opcodes of a value; its tensors get storage numbers in the order in which they occur.
std::string words_of(const TorchValue& value, Tensors& tensors);

std::string members_of(const TorchValue& value, Tensors& tensors) {
  if (value.keys.empty()) return {};
  std::string out = "(";
  for (std::size_t i = 0; i < value.keys.size(); ++i) {
    const std::string& key = value.keys[i];
    const bool number = value.numbered && !key.empty() && key.size() <= 9 &&
                        key.find_first_not_of("0123456789") == std::string::npos;
    out +=
        (number ? number_of(std::stoll(key)) : text_of(key)) + words_of(value.values[i], tensors);
  }
  return out + "u";
}

std::string words_of(const TorchValue& value, Tensors& tensors) {
  using Kind = TorchValue::Kind;
  switch (value.kind) {
    case Kind::None:
      return "N";
    case Kind::Bool:
      return value.number != 0 ? "\x88" : "\x89";
    case Kind::Int:
      return number_of(value.number);
    case Kind::Float: {
      const auto bits = std::bit_cast<std::uint64_t>(value.real);
      return "G" + le(__builtin_bswap64(bits), 8);
    }
    case Kind::Text:
      return text_of(value.word);
    case Kind::List: {
      std::string out = "](";
      for (const TorchValue& item : value.values)
        out += words_of(item, tensors);
      return out + "e";
    }
    case Kind::Dict:
      return "}" + members_of(value, tensors);
    case Kind::OrderedDict:
      return "ccollections\nOrderedDict\n)R" + members_of(value, tensors);
    case Kind::Size: {
      std::string out = "ctorch\nSize\n((";
      for (const TorchValue& item : value.values)
        out += number_of(item.number);
      return out + "ttR";
    }
    case Kind::Tensor:
      tensors.push_back(value.data.get());
      return tensor_of(*value.data, tensors.size() - 1);
  }
  return "N";
}

}  // namespace

TorchValue TorchValue::integer(std::int64_t value) {
  TorchValue out;
  out.kind = Kind::Int;
  out.number = value;
  return out;
}
TorchValue TorchValue::text(std::string value) {
  TorchValue out;
  out.kind = Kind::Text;
  out.word = std::move(value);
  return out;
}
TorchValue TorchValue::list(std::vector<TorchValue> items) {
  TorchValue out;
  out.kind = Kind::List;
  out.values = std::move(items);
  return out;
}
TorchValue TorchValue::dict(std::vector<Item> items, bool numbered) {
  TorchValue out;
  out.kind = Kind::Dict;
  out.numbered = numbered;
  for (Item& item : items) {
    out.keys.push_back(std::move(item.first));
    out.values.push_back(std::move(item.second));
  }
  return out;
}
TorchValue TorchValue::ordered(std::vector<Item> items) {
  TorchValue out = dict(std::move(items));
  out.kind = Kind::OrderedDict;
  return out;
}
TorchValue TorchValue::size(const std::vector<std::int64_t>& shape) {
  TorchValue out;
  out.kind = Kind::Size;
  for (const std::int64_t dim : shape)
    out.values.push_back(integer(dim));
  return out;
}
TorchValue TorchValue::tensor(checkpoint::StreamedTensor tensor) {
  TorchValue out;
  out.kind = Kind::Tensor;
  out.data = std::make_shared<const checkpoint::StreamedTensor>(std::move(tensor));
  return out;
}
TorchValue TorchValue::of(const json::Value& value) {
  TorchValue out;
  if (value.is_bool()) {
    out.kind = Kind::Bool;
    out.number = value.as_bool() ? 1 : 0;
  } else if (value.is_number()) {
    if (const auto whole = value.as_integer();
        whole && value.dump().find_first_of(".eE") == std::string::npos)
      return integer(*whole);
    out.kind = Kind::Float;
    out.real = value.as_double();
  } else if (value.is_string()) {
    return text(value.as_string());
  } else if (value.is_array()) {
    out.kind = Kind::List;
    for (const json::Value& item : value.items())
      out.values.push_back(of(item));
  } else if (value.is_object()) {
    out.kind = Kind::Dict;
    for (const auto& [key, member] : value.members()) {
      out.keys.push_back(key);
      out.values.push_back(of(member));
    }
  }
  return out;
}

void write_torch_file(const fs::path& path,
                      const TorchValue& value,
                      const checkpoint::Written& written) {
  Tensors tensors;
  collect(value, tensors);
  require_storage_types(tensors);
  tensors.clear();
  const std::string pickle = "\x80\x02" + words_of(value, tensors) + ".";
  write_torch_zip(path, pickle, tensors, written);
}

void write_hf_weights(const fs::path& folder,
                      const std::vector<checkpoint::StreamedTensor>& tensors,
                      std::uint64_t shard_bytes,
                      const checkpoint::Written& written) {
  const auto shards = shards_of(tensors, shard_bytes);
  if (shards.size() == 1) return write_shard(folder / "model.safetensors", shards.front(), written);
  json::Value map = json::Value::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_shard(folder / name, shards[i], written);
    for (const checkpoint::StreamedTensor* tensor : shards[i]) {
      map[tensor->name] = json::Value::string(name);
      total += tensor->bytes();
    }
  }
  const json::Value index = json::Value::object(
      {{"metadata",
        json::Value::object(
            {{"total_size", json::Value::integer(static_cast<std::int64_t>(total))}})},
       {"weight_map", map}});
  files::write_atomic(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

void write_torch_weights(const fs::path& path,
                         const std::vector<checkpoint::StreamedTensor>& tensors,
                         const checkpoint::Written& written) {
  Tensors all;
  for (const checkpoint::StreamedTensor& tensor : tensors)
    all.push_back(&tensor);
  require_storage_types(all);
  write_torch_zip(path, pickle_of(tensors), all, written);
}

}  // namespace tessera::interop

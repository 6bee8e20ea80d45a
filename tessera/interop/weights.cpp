// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/weights.h"

#include <array>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/config/json.h"
#include "tessera/interop/torch/file.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFetch = "fetch the folder again";
/// The names of a whole file, and of the index of shards.
constexpr std::array<std::pair<const char*, const char*>, 2> kLayouts = {
    {{"model.safetensors", "model.safetensors.index.json"},
     {"pytorch_model.bin", "pytorch_model.bin.index.json"}}};

/// For shorter copies the pages stay until the tensor's last element is copied, or release() is
/// called.
constexpr std::size_t kReleasedBytes = std::size_t{1} << 20;

/// A larger index cannot describe a model.
constexpr std::uintmax_t kMaxIndexBytes = std::uintmax_t{256} << 20;

/// Maps a tensor to its file's name.
std::map<std::string, std::string> read_index(const fs::path& path) {
  checkpoint::require_plain_file(path, true);
  TESSERA_REQUIRE(fs::file_size(path) <= kMaxIndexBytes,
                  Format,
                  fmt::format("{}: an index of {} bytes", path.string(), fs::file_size(path)),
                  kFetch);
  const json::Value index = json::parse_strict(files::read(path), path.string());
  const json::Value* map = index.is_object() ? index.find("weight_map") : nullptr;
  TESSERA_REQUIRE(map && map->is_object() && !map->members().empty(),
                  Format,
                  path.string() + ": no object \"weight_map\" with tensors",
                  kFetch);
  std::map<std::string, std::string> out;
  for (const auto& [tensor, file] : map->members()) {
    const std::string name = file.is_string() ? file.as_string() : "";
    const bool plain = !name.empty() && name != "." && name != ".." &&
                       name.find('\0') == std::string::npos && fs::path(name).filename() == name;
    TESSERA_REQUIRE(plain,
                    Format,
                    fmt::format("{}: the file of tensor {} is {}",
                                file.place.text(),
                                checkpoint::JsonCursor::shown(tensor),
                                file.dump()),
                    "expected the name of a file in the same folder");
    out.emplace(tensor, name);
  }
  return out;
}

/// A symbolic link to itself also counts as existing: opening it reports the error.
bool is_there(const fs::path& path) {
  std::error_code failed;
  return fs::status(path, failed).type() != fs::file_type::not_found;
}

std::optional<fs::path> index_of(const fs::path& folder) {
  for (const auto& [whole, index] : kLayouts) {
    if (is_there(folder / whole)) return std::nullopt;
    if (is_there(folder / index)) return folder / index;
  }
  return std::nullopt;
}

// Damage of another program's file always has the same remedy.
std::vector<Weight> open_shard(const fs::path& path) {
  try {
    return open_weight_file(path);
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(), error.fix().empty() ? kFetch : error.fix());
  }
}

void check_index(const fs::path& path, const std::vector<Weight>& weights) {
  std::map<std::string_view, std::string> found;
  for (const Weight& weight : weights)
    found.emplace(weight.name, weight.file.filename().string());
  for (const auto& [tensor, file] : read_index(path)) {
    const auto it = found.find(tensor);
    TESSERA_REQUIRE(it != found.end() && it->second == file,
                    Format,
                    fmt::format("{} places tensor {} in {}, which lacks it",
                                path.string(),
                                checkpoint::JsonCursor::shown(tensor),
                                file),
                    kFetch);
  }
}

std::vector<Weight> open_safetensors(const fs::path& path) {
  const auto file = std::make_shared<const checkpoint::SafetensorsFile>(path);
  std::vector<Weight> out;
  for (const checkpoint::TensorEntry& entry : file->entries()) {
    out.push_back({entry.name,
                   entry.dtype,
                   entry.shape,
                   row_major(entry.shape),
                   file->bytes(entry).data(),
                   path,
                   {file, &file->mapped()}});
  }
  return out;
}

/// Frees the memory of the pages inside `read`, a part of the mapped file; they are read again when
/// accessed.
void give_back(const files::Mapped* file, std::span<const std::byte> read) noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = [](const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); };
  if (file == nullptr) return;
  const std::span<const std::byte> all = file->bytes();
  const std::uintptr_t begin = address(read.data()), end = begin + read.size();
  const std::uintptr_t all_begin = address(all.data()), all_end = all_begin + all.size();
  if (begin < all_begin || end > all_end) return;
  // The last page of a file belongs entirely to it.
  const std::uintptr_t first = (begin - all_begin + page - 1) / page * page;
  const std::uintptr_t last = end == all_end ? end - all_begin : (end - all_begin) / page * page;
  if (first < last)
    ::madvise(const_cast<std::byte*>(all.data()) + first, last - first, MADV_DONTNEED);
}

}  // namespace

std::int64_t Weight::numel() const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape)
    count *= size;
  return count;
}

std::uint64_t Weight::bytes() const noexcept {
  return static_cast<std::uint64_t>(numel()) * size_of(dtype);
}

bool Weight::contiguous() const noexcept {
  std::int64_t expected = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != expected) return numel() == 0;
    expected *= shape[d];
  }
  return true;
}

std::int64_t Weight::offset(std::int64_t index) const noexcept {
  std::int64_t out = 0;
  for (std::size_t d = shape.size(); d-- > 0;) {
    out += index % shape[d] * strides[d];
    index /= shape[d];
  }
  return out;
}

void Weight::copy(std::int64_t begin, std::int64_t end, std::byte* out) const noexcept {
  if (begin == end) return;
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  if (contiguous()) {
    const auto size = static_cast<std::size_t>((end - begin) * width);
    std::memcpy(out, data + begin * width, size);
    if (size >= kReleasedBytes) {
      give_back(map.get(), {data + begin * width, size});
    } else if (end == numel()) {
      release();
    }
    return;
  }
  for (std::int64_t i = begin; i < end; ++i)
    std::memcpy(
        out + (i - begin) * width, data + offset(i) * width, static_cast<std::size_t>(width));
  if (end == numel()) release();  // until then pages of a view are accessed repeatedly
}

void Weight::release() const noexcept {
  if (numel() == 0) return;
  give_back(map.get(), {data, static_cast<std::size_t>(offset(numel() - 1) + 1) * size_of(dtype)});
}

void Weight::release(std::int64_t begin, std::int64_t end) const noexcept {
  if (!contiguous()) return release();
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  if (begin < end)
    give_back(map.get(), {data + begin * width, static_cast<std::size_t>((end - begin) * width)});
}

bool Weight::same_storage(const Weight& other) const noexcept {
  return data == other.data && dtype == other.dtype && shape == other.shape &&
         strides == other.strides && numel() > 0;
}

std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> out(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;)
    out[d - 1] = out[d] * shape[d];
  return out;
}

std::vector<Weight> open_weight_file(const fs::path& path) {
  if (path.extension() == ".safetensors") return open_safetensors(path);
  return open_torch_file(path);
}

bool is_weight_file(const fs::path& path) {
  const std::string kind = path.extension().string();
  std::error_code failed;
  return (kind == ".safetensors" || kind == ".bin" || kind == ".pt" || kind == ".pth") &&
         fs::is_regular_file(path, failed);
}

std::vector<fs::path> weight_files(const fs::path& path) {
  if (is_weight_file(path)) return {path};
  for (const auto& [whole, index] : kLayouts) {
    if (is_there(path / whole)) return {path / whole};
    if (!is_there(path / index)) continue;
    std::set<std::string> names;
    for (const auto& [tensor, file] : read_index(path / index))
      names.insert(file);
    std::vector<fs::path> out;
    for (const std::string& name : names)
      out.push_back(path / name);
    return out;
  }
  return {};
}

std::vector<Weight> open_weights(const fs::path& path) {
  const auto files = weight_files(path);
  TESSERA_REQUIRE(!files.empty(),
                  Format,
                  fmt::format("{} has none of {}, {}, {} and {}",
                              path.string(),
                              kLayouts[0].first,
                              kLayouts[0].second,
                              kLayouts[1].first,
                              kLayouts[1].second),
                  "name the folder of a transformers model");
  std::vector<Weight> out;
  std::set<std::string> names;
  for (const fs::path& file : files) {
    for (Weight& weight : open_shard(file)) {
      TESSERA_REQUIRE(names.insert(weight.name).second,
                      Format,
                      fmt::format("{}: tensor {} is in another file too",
                                  file.string(),
                                  checkpoint::JsonCursor::shown(weight.name)),
                      kFetch);
      out.push_back(std::move(weight));
    }
  }
  if (const auto index = index_of(path)) check_index(*index, out);
  return out;
}

}  // namespace tessera::interop

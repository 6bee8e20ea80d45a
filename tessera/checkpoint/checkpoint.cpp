// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/checkpoint.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/archive.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/two_threads.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Bytes of a tensor that digest() holds at a time.
constexpr std::int64_t kDigestBytes = kBlockBytes;

/// Runs `work`. An error about damage gets the newest intact older checkpoint as its fix.
template <class F>
auto offering_older(const fs::path& folder, F work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::Format || !error.fix().empty()) throw;
    if (!step_of(folder))
      throw Error(error.kind(), error.what(), "copy the checkpoint again from its source");
    const auto older = newest_intact_before(folder);
    throw Error(
        error.kind(),
        error.what(),
        older ? fmt::format("continue from {}, the newest intact older checkpoint: --resume {}",
                            older->string(),
                            older->string())
              : "no older checkpoint next to it is intact: start over with --resume never");
  }
}

/// Order of tensors: parameters first, then optimizer state; each by name.
bool before(const Checkpoint::Tensor& a, const Checkpoint::Tensor& b) {
  constexpr std::string_view kState = "optimizer.";
  return std::pair(a.name.starts_with(kState), std::string_view(a.name)) <
         std::pair(b.name.starts_with(kState), std::string_view(b.name));
}

}  // namespace

struct Checkpoint::Stored : Archive {
  using Archive::Archive;
};

Checkpoint::Checkpoint(const fs::path& folder)
    : folder_(folder.has_filename() ? folder : folder.parent_path()) {
  offering_older(folder_, [&] { stored_ = std::make_shared<const Stored>(folder_); });
  meta_ = stored_->meta();
  for (const auto& [name, tensor] : stored_->tensors())
    tensors_.push_back({name, tensor.dtype, tensor.shape});
  index_tensors();
}

Checkpoint::Checkpoint(fs::path folder,
                       Meta meta,
                       std::vector<Tensor> tensors,
                       std::shared_ptr<const Source> source)
    : folder_(std::move(folder)),
      meta_(std::move(meta)),
      tensors_(std::move(tensors)),
      source_(std::move(source)) {
  index_tensors();
}

void Checkpoint::index_tensors() {
  std::sort(tensors_.begin(), tensors_.end(), before);
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    by_name_.emplace(tensors_[i].name, i);
}

bool Checkpoint::has(std::string_view name) const {
  return by_name_.count(name) > 0;
}

void Checkpoint::require_whole() const {
  if (stored_) stored_->require_whole();
}

std::uint64_t Checkpoint::save_id() const {
  return stored_ ? stored_->save_id() : 0;
}

void Checkpoint::read(const std::string& name,
                      const mesh::Piece& want,
                      DType to,
                      std::byte* out) const {
  if (source_) return source_->read(name, want, to, out);
  stored_->read(name, want, to, out);
}

void Checkpoint::check(const PieceBytes& want) const {
  const auto at = by_name_.find(want.name);
  if (at == by_name_.end()) {
    const std::string missing = stored_ ? stored_->missing_parts() : "";
    TESSERA_REQUIRE(
        missing.empty(),
        Format,
        fmt::format(
            "{} has no tensor {}; {}", folder_.string(), JsonCursor::shown(want.name), missing),
        kJoinParts);
    std::vector<std::string> names;
    for (const auto& tensor : tensors_)
      names.push_back(tensor.name);
    throw Error(Error::Kind::Format,
                fmt::format("{} has no tensor {}", folder_.string(), JsonCursor::shown(want.name)),
                text::suggestion(want.name, names));
  }
  const Tensor& tensor = tensors_[at->second];
  TESSERA_REQUIRE(tensor.shape == want.shape,
                  Format,
                  fmt::format("{}: tensor {} is [{}], but [{}] is expected",
                              folder_.string(),
                              JsonCursor::shown(want.name),
                              fmt::join(tensor.shape, ", "),
                              fmt::join(want.shape, ", ")),
                  "load it into the model that wrote it (tessera inspect shows its configuration)");
  TESSERA_REQUIRE(convertible(tensor.dtype, want.dtype),
                  Format,
                  fmt::format("{}: tensor {} is {}, which cannot be converted to {}",
                              folder_.string(),
                              JsonCursor::shown(want.name),
                              name(tensor.dtype),
                              name(want.dtype)),
                  "request its own dtype");
  const std::int64_t count = want.piece.end - want.piece.begin;
  TESSERA_ASSERT(count >= 0 &&
                 want.bytes.size() == static_cast<std::uint64_t>(count) * size_of(want.dtype));
  TESSERA_ASSERT(count == 0 || !misplaced(tensor.shape, want.piece));
}

void Checkpoint::load(std::span<const PieceBytes> pieces) const {
  for (const auto& want : pieces)
    check(want);
  offering_older(folder_, [&] {
    const auto one = [&](std::size_t i) {
      const PieceBytes& want = pieces[i];
      if (!want.bytes.empty()) read(want.name, want.piece, want.dtype, want.bytes.data());
    };
    if (stored_) return on_two_threads(pieces.size(), one);
    for (std::size_t i = 0; i < pieces.size(); ++i)  // a Source may not support two threads
      one(i);
  });
}

void Checkpoint::check_files() const {
  if (!stored_) return;  // files of other programs were checked when they were opened
  offering_older(folder_, [&] { stored_->check_files(); });
}

std::uint64_t Checkpoint::bytes() const {
  std::uint64_t sum = 0;
  for (const Tensor& tensor : tensors_)
    sum += static_cast<std::uint64_t>(checked_numel(tensor.shape)) * size_of(tensor.dtype);
  return sum;
}

void Checkpoint::verify() const {
  if (!stored_) return;  // files of other programs have no checksums
  offering_older(folder_, [&] { stored_->verify(); });
}

std::vector<float> Checkpoint::values(const Tensor& tensor) const {
  const std::int64_t numel = checked_numel(tensor.shape);
  std::vector<float> out(static_cast<std::size_t>(numel));
  const PieceBytes piece{tensor.name,
                         DType::F32,
                         tensor.shape,
                         {mesh::whole(tensor.shape), 0, numel},
                         std::as_writable_bytes(std::span(out))};
  load({&piece, 1});
  return out;
}

std::vector<std::string> Checkpoint::digest() const {
  require_whole();
  std::vector<std::string> lines;
  std::vector<std::byte> buffer;
  for (const auto& tensor : tensors_) {
    const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
    const std::int64_t numel = checked_numel(tensor.shape), step = kDigestBytes / width;
    files::Hasher hasher;
    for (std::int64_t begin = 0; begin < numel; begin += step) {
      const std::int64_t end = std::min(begin + step, numel);
      buffer.resize(static_cast<std::size_t>((end - begin) * width));
      offering_older(folder_, [&] {
        read(tensor.name, {mesh::whole(tensor.shape), begin, end}, tensor.dtype, buffer.data());
      });
      hasher.update(buffer);
    }
    lines.push_back(digest_line(tensor.name, tensor.dtype, tensor.shape, hasher.digest()));
  }
  return lines;
}

std::string digest_line(std::string_view tensor,
                        DType dtype,
                        const std::vector<std::int64_t>& shape,
                        std::uint64_t xxh3) {
  return fmt::format(
      "{} {} [{}] xxh3:{}", tensor, name(dtype), fmt::join(shape, ","), files::hex64(xxh3));
}

}  // namespace tessera::checkpoint

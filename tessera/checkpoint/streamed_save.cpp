// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/streamed_save.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Writes the elements and returns one checksum per block.
std::vector<std::uint64_t> write_tensor(Output& output,
                                        const StreamedTensor& tensor,
                                        const Written& written) {
  std::vector<std::uint64_t> out;
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
  const std::int64_t numel = checked_numel(tensor.shape), step = kBlockBytes / width;
  std::vector<std::byte> block;
  for (std::int64_t at = 0; at < numel; at += step) {
    const std::int64_t end = std::min(at + step, numel);
    block.resize(static_cast<std::size_t>((end - at) * width));
    tensor.read(at, end, block.data());
    files::Hasher hasher;
    hasher.update(block);
    out.push_back(hasher.digest());
    output.append(block);
    written(block.size());
  }
  return out;
}

}  // namespace

void write_checkpoint(const fs::path& folder,
                      const Meta& meta,
                      const std::vector<StreamedTensor>& tensors,
                      const Written& written) {
  Storage& disk = real_storage();
  std::map<std::string, const StreamedTensor*> by_name;
  std::vector<TensorEntry> entries;
  for (const StreamedTensor& tensor : tensors) {
    by_name.emplace(tensor.name, &tensor);
    if (checked_numel(tensor.shape) > 0)
      entries.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  const std::string header = lay_out(entries, {{"format", "pt"}});
  const std::uint64_t data_bytes = entries.empty() ? 0 : entries.back().end;
  const auto output = disk.create(folder / shard_name(0), header.size() + data_bytes);
  output->append(std::as_bytes(std::span(header)));
  std::map<std::string, std::vector<std::uint64_t>> checksums;
  for (const TensorEntry& entry : entries)
    checksums[entry.name] = write_tensor(*output, *by_name.at(entry.name), written);
  output->sync();
  Manifest manifest;
  manifest.meta = meta;
  manifest.headers[shard_name(0)] = files::xxh3(std::as_bytes(std::span(header)));
  for (const auto& [name, tensor] : by_name) {
    StoredTensor stored{name, tensor->dtype, tensor->shape, {}};
    const std::int64_t numel = checked_numel(tensor->shape);
    if (numel > 0) {
      stored.pieces.push_back({shard_name(0),
                               name,
                               {mesh::whole(tensor->shape), 0, numel},
                               std::move(checksums[name])});
    }
    manifest.tensors.push_back(std::move(stored));
  }
  check_cover(manifest, Error::Kind::Bug, folder.string());
  const std::string text = dump(manifest);
  const auto file = disk.create(folder / kManifestName, text.size());
  file->append(std::as_bytes(std::span(text)));
  file->sync();
  disk.sync_folder(folder);
}

std::vector<StreamedTensor> tensors_of(const std::shared_ptr<const Checkpoint>& checkpoint) {
  std::vector<StreamedTensor> out;
  for (const Checkpoint::Tensor& tensor : checkpoint->tensors()) {
    const auto read = [checkpoint, tensor](std::int64_t begin, std::int64_t end, std::byte* bytes) {
      const PieceBytes piece{
          tensor.name,
          tensor.dtype,
          tensor.shape,
          {mesh::whole(tensor.shape), begin, end},
          {bytes, static_cast<std::size_t>(end - begin) * size_of(tensor.dtype)}};
      checkpoint->load({&piece, 1});
    };
    out.push_back({tensor.name, tensor.dtype, tensor.shape, read, {}});
  }
  return out;
}

std::uint64_t StreamedTensor::bytes() const {
  std::uint64_t numel = 1;
  for (const std::int64_t size : shape)
    numel *= static_cast<std::uint64_t>(size);
  return numel * size_of(dtype);
}

}  // namespace tessera::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Weights in any supported file: safetensors or torch, one file or shards with an index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::interop {

/// A tensor in a mapped file. Every element that shape and strides can reach is inside the file.
/// Const methods can be called from any thread.
struct Weight {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements, none negative
  const std::byte* data = nullptr;    ///< the first element; may be unaligned
  std::filesystem::path file;
  std::shared_ptr<const files::Mapped> map;  ///< the file that contains `data`

  [[nodiscard]] std::int64_t numel() const noexcept;
  [[nodiscard]] std::uint64_t bytes() const noexcept;
  /// True if its elements are contiguous in row-major order.
  [[nodiscard]] bool contiguous() const noexcept;
  /// The offset of element `index` (row-major) from `data`, in elements.
  [[nodiscard]] std::int64_t offset(std::int64_t index) const noexcept;
  /// Copies elements [begin, end) in row-major order. Data that is copied from front to back does
  /// not stay in memory.
  void copy(std::int64_t begin, std::int64_t end, std::byte* out) const noexcept;
  /// Frees the memory of the copied data; it is read again if it is copied again.
  void release() const noexcept;
  /// Frees the memory of elements [begin, end) of a contiguous tensor; of any other tensor, all.
  void release(std::int64_t begin, std::int64_t end) const noexcept;
  /// True if both have the same elements of the same storage (tied weights).
  [[nodiscard]] bool same_storage(const Weight& other) const noexcept;
};

/// The strides of a contiguous tensor.
std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape);

/// The tensors of a .safetensors or torch.save file, in the order of the file. Throws Error{Format}
/// with file and tensor for every inconsistency.
std::vector<Weight> open_weight_file(const std::filesystem::path& path);

/// True if `path` is a file with a name for weights: .safetensors, .bin, .pt or .pth.
bool is_weight_file(const std::filesystem::path& path);

/// The files of a folder that contain its weights, in Hugging Face's order of preference:
/// model.safetensors, the shards of model.safetensors.index.json, pytorch_model.bin, the shards of
/// pytorch_model.bin.index.json; empty if it has none of these. Throws Error{Format} for an index
/// with an entry that is not a plain file of the folder. A weight file is returned itself.
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& path);

/// All tensors of weight_files(). Throws Error{Format} for a folder without any, a tensor that
/// occurs twice, and an index that assigns a tensor to a file that lacks it.
std::vector<Weight> open_weights(const std::filesystem::path& path);

}  // namespace tessera::interop

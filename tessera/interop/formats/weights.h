// SPDX-License-Identifier: Apache-2.0
// Somebody's weights, whatever file they lie in: safetensors or torch, one file or shards with an
// index.
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

/// A tensor where it lies in a mapped file. Every element that shape and strides can reach is
/// inside of it. Threads: const methods from any thread.
struct Weight {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements, none negative
  const std::byte* data = nullptr;    ///< the first element; not aligned
  std::filesystem::path file;
  std::shared_ptr<const files::Mapped> map;  ///< what `data` lies in

  [[nodiscard]] std::int64_t numel() const noexcept;
  [[nodiscard]] std::uint64_t bytes() const noexcept;
  /// Whether its elements lie one after the other in row-major order.
  [[nodiscard]] bool contiguous() const noexcept;
  /// Where element `index` (row-major) lies, in elements from `data`.
  [[nodiscard]] std::int64_t offset(std::int64_t index) const noexcept;
  /// Copies elements [begin, end) in row-major order. What was copied front to back does not stay
  /// in memory.
  void copy(std::int64_t begin, std::int64_t end, std::byte* out) const noexcept;
  /// Gives up the memory of what was copied; it is read anew when it is copied again.
  void release() const noexcept;
  /// That of elements [begin, end) of a contiguous tensor; of any other, of all.
  void release(std::int64_t begin, std::int64_t end) const noexcept;
  /// The same elements of the same storage under another name (tied weights).
  [[nodiscard]] bool same_storage(const Weight& other) const noexcept;
};

/// Strides of a tensor whose elements lie one after the other.
std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape);

/// The tensors of a .safetensors file or of a file of torch.save, in the order of the file.
/// Error{Format} names file and tensor for every lie.
std::vector<Weight> open_weight_file(const std::filesystem::path& path);

/// Whether `path` is a file whose name says weights: .safetensors, .bin, .pt or .pth.
bool is_weight_file(const std::filesystem::path& path);

/// The files of a folder that hold its weights, in Hugging Face's order of preference:
/// model.safetensors, the shards of model.safetensors.index.json, pytorch_model.bin, the shards of
/// pytorch_model.bin.index.json; empty if it has none of these. An index that names no plain file
/// of the folder is Error{Format}. A file of weights stands for itself.
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& path);

/// All tensors of weight_files(). Error{Format} for a folder without any, a tensor that is there
/// twice, and an index that places a tensor in a file that lacks it.
std::vector<Weight> open_weights(const std::filesystem::path& path);

}  // namespace tessera::interop

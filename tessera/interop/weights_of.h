// SPDX-License-Identifier: Apache-2.0
// Presents other programs' tensors under tessera's names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/interop/export.h"
#include "tessera/interop/weights.h"
#include "tessera/models/family.h"

namespace tessera::interop {

/// Removes the prefixes that wrappers add to a name: "module." and "_orig_mod.", in any order.
std::string unwrapped(std::string name);

/// True if both tensors have the same shape and the same bits as fp32.
bool same_values(const checkpoint::StreamedTensor& a, const checkpoint::StreamedTensor& b);

/// The tensors of a model's state_dict that a training loop saved together with other things, under
/// "state_dict", "model_state_dict", "model", "module" or "net": without that key and without
/// wrappers. Returns all tensors if there is no such state_dict.
std::vector<Weight> state_dict_of(std::vector<Weight> weights);

/// Limits the pages of mapped files that reads leave in memory: to those of one tensor, and if it
/// is read in order, to 16 MiB of it. Can be used from any thread.
class ReadPages {
 public:
  /// Call after `bytes` of the tensor were read; `release` frees its pages.
  void add(const void* tensor,
           std::uint64_t bytes,
           bool in_order,
           const std::function<void()>& release);

 private:
  std::mutex mutex_;
  const void* last_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::function<void()> release_;
};

/// A source over tensors with Hugging Face's names and layouts for the family, with or without its
/// base prefix, and with any wrapper prefixes (unwrapped). `what` names them in messages. Throws
/// Error{Format} that lists names that are missing, unexpected or of another shape, and for a
/// stored head that a tied model would not use. The source keeps alive what the tensors keep alive;
/// any range of any parameter may be read, from any thread. Cost: a transposed matrix is read line
/// by line. Memory: some of these lines, and some MB for dtypes other than fp32. `pages`: shared by
/// sources that are read in turn.
models::WeightSource weights_of(const std::vector<checkpoint::StreamedTensor>& tensors,
                                const models::Family& family,
                                const models::Resolved& resolved,
                                const std::string& what,
                                std::shared_ptr<ReadPages> pages = std::make_shared<ReadPages>());

/// Returns a source over the weights of a Hugging Face folder (safetensors or torch files, single
/// or in shards) or of a single such file; weights quantized by bitsandbytes are dequantized.
/// Checks all names and shapes first; the source keeps the files mapped and reads only requested
/// parts. Errors as above.
models::WeightSource weights_from_hf(const std::filesystem::path& path,
                                     const models::Family& family,
                                     const models::Resolved& resolved);

}  // namespace tessera::interop

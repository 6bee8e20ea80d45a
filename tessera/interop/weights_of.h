// SPDX-License-Identifier: Apache-2.0
// Tensors of other programs under our names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/interop/formats/export.h"
#include "tessera/interop/formats/weights.h"
#include "tessera/models/family.h"

namespace tessera::interop {

/// A name without what wrappers put before it: "module." and "_orig_mod.", in any order.
std::string unwrapped(std::string name);

/// The tensors of the state_dict of a model of any family that a training loop saved beside other
/// things, under "state_dict", "model_state_dict", "model", "module" or "net": without that key and
/// without wrappers. All tensors where there is none.
std::vector<Weight> state_dict_of(std::vector<Weight> weights);

/// Keeps few the pages of mapped files that reads leave behind: those of one tensor; and where its
/// bytes are read in their order, of 16 MiB of it. Threads: any.
class ReadPages {
 public:
  /// `bytes` of the tensor whose pages `release` gives up were read.
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

/// A source over tensors that have Hugging Face's names and layouts for the family, with or without
/// its base prefix, and with any wrappers before them (unwrapped). `what` names them in messages.
/// Error{Format} lists names that are missing, unexpected or of another shape, and refuses a stored
/// head that a tied model would not use. The source keeps what the tensors keep; any range of any
/// parameter may be asked for, from any thread. Cost: a transposed matrix is read line by line.
/// Memory: some of these lines, and some MB for types other than fp32. `pages`: shared by sources
/// that are read in turn.
models::WeightSource weights_of(const std::vector<checkpoint::StreamedTensor>& tensors,
                                const models::Family& family,
                                const models::Resolved& resolved,
                                const std::string& what,
                                std::shared_ptr<ReadPages> pages = std::make_shared<ReadPages>());

/// A source over the weights of a Hugging Face folder, safetensors or torch's, whole or in shards,
/// or of a lone file of such; what bitsandbytes narrowed is widened. Checks all names and shapes
/// first; the source keeps the files mapped and reads only what it is asked for. Errors as above.
models::WeightSource weights_from_hf(const std::filesystem::path& path,
                                     const models::Family& family,
                                     const models::Resolved& resolved);

}  // namespace tessera::interop

// SPDX-License-Identifier: Apache-2.0
// Tensors of others under our names.
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

/// Causal masks that old versions stored among the weights.
bool is_buffer(std::string_view name);
/// A name without what wrappers put before it: "module." and "_orig_mod.", in any order.
std::string unwrapped(std::string name);

/// Of what a training loop saved beside other things, under "state_dict", "model_state_dict",
/// "model", "module" or "net", the tensors under that key, without it and without wrappers; of
/// others all.
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
/// its base prefix, and whatever a wrapper put before them (unwrapped). `what` names them in
/// messages. Error{Format} lists names that are missing, unexpected or of another shape, and
/// refuses a stored head that a tied model would not use. The source keeps what the tensors keep;
/// any range of any parameter may be asked for, from any thread. Cost: a transposed matrix is read
/// row by row of theirs. Memory: some of these rows, and some MB of other types than fp32. `pages`:
/// shared by sources that are read in turn.
models::WeightSource weights_of(const std::vector<checkpoint::StreamedTensor>& tensors,
                                const models::Family& family,
                                const models::Resolved& resolved,
                                const std::string& what,
                                std::shared_ptr<ReadPages> pages = std::make_shared<ReadPages>());

/// The weights of a Hugging Face folder (safetensors or torch files, whole or in shards) or of a
/// single file of weights, under our names. All names and shapes are checked first; the files stay
/// mapped, and only what is asked for is read. Threads: any. Error{Format} as weights_of().
models::WeightSource weights_from_hf(const models::Family& family,
                                     const std::filesystem::path& path,
                                     const models::Resolved& resolved);

}  // namespace tessera::interop

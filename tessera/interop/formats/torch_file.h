// SPDX-License-Identifier: Apache-2.0
// Files of torch.save: the zip form of torch 1.6 and later, and the stream of pickles before it.
// Bytes: docs/formats/torch.md.
#pragma once

#include <filesystem>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/formats/weights.h"

namespace tessera::interop {

/// The tensors of a file whose pickle is a dict of tensors, or of dicts, lists and tuples of them
/// (a tensor three levels down is named "state.0.exp_avg"). Numbers, texts, None and objects of the
/// classes that such files hold (pickle_globals.h) are passed over. Nothing of the file is ever
/// executed. Error{Format} naming the file, and where there is one the tensor, for whatever does
/// not fit: zip, pickle, a storage that is shorter than what lies in it, shapes and strides that
/// overflow, nesting beyond 32 levels; Error{Unsupported} for big-endian files and those of torch
/// before 0.1.10. The tensors stay mapped for as long as one of them lives.
std::vector<Weight> open_torch_file(const std::filesystem::path& path);

/// All that a file of torch.save says, tensors and the rest.
struct TorchContents {
  std::vector<Weight> tensors;
  /// The tree of dicts, lists and tuples with its numbers, texts and None; a tensor is null in it,
  /// its place is its name. An object of a class is {"class": "argparse.Namespace", "arguments":
  /// [...], "state": ...}.
  json::Value values;
};
/// Reads a training state: as open_torch_file(), and objects are described. Nothing is ever made or
/// called.
TorchContents read_torch_file(const std::filesystem::path& path);

}  // namespace tessera::interop

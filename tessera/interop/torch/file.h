// SPDX-License-Identifier: Apache-2.0
// Reads files of torch.save: the zip form of torch 1.6 and later, and the older stream of pickles.
// Byte layout: docs/formats/torch.md.
#pragma once

#include <filesystem>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/weights.h"

namespace tessera::interop {

/// The tensors of a file whose pickle is a dict of tensors, or of dicts, lists and tuples of them
/// (a tensor three levels down is named "state.0.exp_avg"). Numbers, strings, None and objects of
/// known classes (pickle_globals.h) are ignored. Nothing in the file is ever executed. Throws
/// Error{Format} with the file and, if there is one, the tensor for any inconsistency: zip, pickle,
/// a storage that is too short, overflowing shapes and strides, nesting beyond 32 levels; throws
/// Error{Unsupported} for big-endian files and those of torch before 0.1.10. The file stays mapped
/// as long as one of the tensors exists.
std::vector<Weight> open_torch_file(const std::filesystem::path& path);

/// The complete contents of a torch.save file: tensors and other values.
struct TorchContents {
  std::vector<Weight> tensors;
  /// The tree of dicts, lists and tuples with its numbers, strings and None; a tensor is null in
  /// it, and its path is its name. An object of a class is {"class": "argparse.Namespace",
  /// "arguments": [...], "state": ...}.
  json::Value values;
};
/// Reads a training state: as open_torch_file(), but objects are described. Nothing is ever
/// constructed or called.
TorchContents read_torch_file(const std::filesystem::path& path);

}  // namespace tessera::interop

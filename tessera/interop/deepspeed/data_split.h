// SPDX-License-Identifier: Apache-2.0
// DeepSpeed-Chat's --data_split: the records of a file that one of three steps reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::interop {

/// Returns the indices of the records that step `part` (from 0) of a data set with `size` records
/// reads, in DeepSpeed-Chat's order: all indices shuffled by `seed` as numpy's RandomState does,
/// and cut by the shares. `shares` must have a sum above 0.
std::vector<std::uint32_t> chat_part(const std::vector<double>& shares,
                                     std::size_t part,
                                     std::uint32_t seed,
                                     std::uint32_t size);

/// Writes these records of the files, one object a line, into the cache of tessera, unless they are
/// there already, and returns the path. `dataset`: a name by which chat_record() knows their
/// fields; records without a question or an answer are left out. Throws Error{Data} and Error{Io}.
std::filesystem::path write_chat_part(const std::vector<std::string>& files,
                                      const std::vector<double>& shares,
                                      std::size_t part,
                                      std::uint32_t seed,
                                      const std::string& dataset = "");

}  // namespace tessera::interop

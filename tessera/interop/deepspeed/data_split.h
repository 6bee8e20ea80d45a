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

/// Which records of a data set are divided by chat_part(): all, or, of those that have no part for
/// evaluation, the nine tenths for training or the tenth for evaluation, which are chat_part() of
/// the shares 9 and 1.
enum class ChatRecords { All, Training, Evaluation };

/// Returns the indices of the records that step `part` reads, of `size` records of which `records`
/// are divided.
std::vector<std::uint32_t> chat_part(ChatRecords records,
                                     const std::vector<double>& shares,
                                     std::size_t part,
                                     std::uint32_t seed,
                                     std::uint32_t size);

/// Writes these records of the files, one object a line, into the cache of tessera, unless they are
/// there already, and returns the path. `dataset`: a name by which chat_record() knows their
/// fields; records without a question or an answer are left out. Returns an empty path if there
/// are none for evaluation; throws Error{Data} if there are none for training, and Error{Io}.
std::filesystem::path write_chat_part(const std::vector<std::string>& files,
                                      const std::vector<double>& shares,
                                      std::size_t part,
                                      std::uint32_t seed,
                                      const std::string& dataset = "",
                                      ChatRecords which = ChatRecords::All);

}  // namespace tessera::interop

// SPDX-License-Identifier: Apache-2.0
// Experts in MXFP4, four bits per number with a power of two for each 32 of them, as gpt-oss is
// published: "NAME_blocks" [E, O, G, 16] and "NAME_scales" [E, O, G], both bytes. Source: Open
// Compute Project 2023, "OCP microscaling formats (MX) specification"; transformers 5.24.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/interop/weights.h"

namespace tessera::interop {

/// NAME of "NAME_blocks"; nothing for other names.
std::optional<std::string> name_of_mxfp4(std::string_view blocks);

/// The numbers of blocks and scales as transformers names and stores them: NAME [E, 32 G, O] in
/// bf16, which holds each of them exactly. Memory: one column of blocks as fp32, 32 O numbers.
/// Reads are serialized between threads. Throws Error{Format} naming file and tensor unless the
/// sizes agree.
checkpoint::StreamedTensor decoded_mxfp4(const Weight& blocks, const Weight& scales);

}  // namespace tessera::interop

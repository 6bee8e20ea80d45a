// SPDX-License-Identifier: Apache-2.0
// The two formats, each over its library. Internal to this folder.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "tessera/data/images/image.h"

namespace tessera::data::images {

bool is_png(std::span<const std::byte> bytes);
bool is_jpeg(std::span<const std::byte> bytes);
/// Only the size where not `whole`.
Image decode_png(std::span<const std::byte> bytes, const std::string& place, bool whole);
Image decode_jpeg(std::span<const std::byte> bytes, const std::string& place, bool whole);
/// Error{Data} unless both are at least 1 and there are at most kMostPixels.
void check_size(const ImageSize& size, const std::string& place);
/// Error{Data} with what the library said.
[[noreturn]] void refuse_image(const std::string& place, const std::string& what);

}  // namespace tessera::data::images

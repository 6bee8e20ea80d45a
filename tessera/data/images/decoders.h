// SPDX-License-Identifier: Apache-2.0
// The decoders of the two formats, each based on its library. Internal to this folder.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "tessera/data/images/image.h"

namespace tessera::data::images {

bool is_png(std::span<const std::byte> bytes);
bool is_jpeg(std::span<const std::byte> bytes);
/// Decodes only the size unless `whole`.
Image decode_png(std::span<const std::byte> bytes, const std::string& place, bool whole);
Image decode_jpeg(std::span<const std::byte> bytes, const std::string& place, bool whole);
/// Throws Error{Data} unless both sides are at least 1 and there are at most kMostPixels pixels.
void check_size(const ImageSize& size, const std::string& place);
/// Throws Error{Data} with the library's message.
[[noreturn]] void refuse_image(const std::string& place, const std::string& what);

}  // namespace tessera::data::images

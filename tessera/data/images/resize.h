// SPDX-License-Identifier: Apache-2.0
// Resizes images with the same bits as Pillow. When an image shrinks, the filter is as wide as the
// area that a new pixel covers (antialiasing). Weights have 22 fractional bits; rows are resampled
// first, then columns, with rounding to eight bits between.
#pragma once

#include <cstdint>

#include "tessera/data/images/image.h"

namespace tessera::data::images {

/// The values are Pillow's.
enum class Resample : std::uint8_t { Lanczos = 1, Bilinear = 2, Bicubic = 3 };

/// The whole image in another size. Cost: new pixels times the filter's width in each direction.
Image resized(const Image& image, const ImageSize& size, Resample how);

/// The part of size `size` with its upper left corner at (left, top); it must be inside the image.
Image cropped(const Image& image, std::int64_t left, std::int64_t top, const ImageSize& size);

}  // namespace tessera::data::images

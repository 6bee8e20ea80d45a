// SPDX-License-Identifier: Apache-2.0
// Pictures of another size, to the bit as Pillow makes them: a filter that is as wide as what one
// new pixel stands for, so that nothing is left out where a picture shrinks (antialiasing). Weights
// have 22 bits behind the point; rows first, then columns, rounded to eight bits between.
#pragma once

#include <cstdint>

#include "tessera/data/images/image.h"

namespace tessera::data::images {

/// By Pillow's numbers.
enum class Resample : std::uint8_t { Lanczos = 1, Bilinear = 2, Bicubic = 3 };

/// The whole picture at another size. Cost: new pixels times the filter's width in each direction.
Image resized(const Image& image, const ImageSize& size, Resample how);

/// The part of `size` whose upper left corner is at (left, top), which lies inside of the picture.
Image cropped(const Image& image, std::int64_t left, std::int64_t top, const ImageSize& size);

}  // namespace tessera::data::images

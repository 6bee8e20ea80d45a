// SPDX-License-Identifier: Apache-2.0
// Pictures in memory, and how they are read from PNG and JPEG files. Such a file is from outside:
// its memory and time are bounded by kMostPixels, whatever it says of itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera::data::images {

inline constexpr std::int64_t kMostPixels = 1 << 26;  ///< 67 million

struct ImageSize {
  std::int64_t width = 0, height = 0;
  bool operator==(const ImageSize&) const = default;
};

/// Eight bits for each of red, green and blue, row by row: rgb is [height, width, 3].
struct Image {
  ImageSize size;
  std::vector<std::uint8_t> rgb;
};

/// Whether the name ends like that of a picture: .png, .jpg or .jpeg.
bool is_image_name(const std::filesystem::path& path);

/// The size that the head of a file says. `place` names the file in messages. Error{Data} for what
/// is no PNG or JPEG, and for more than kMostPixels.
ImageSize read_image_size(std::span<const std::byte> bytes, const std::string& place);

/// The whole picture: grey becomes colour, transparency is left out, 16 bits lose the lower eight,
/// and JPEG's orientation is not looked at. Error{Data} for a file that is damaged or ends early,
/// Error{Unsupported} for a JPEG of four colours. Memory: the picture, and of a progressive JPEG
/// twice as much again.
Image decode_image(std::span<const std::byte> bytes, const std::string& place);

}  // namespace tessera::data::images

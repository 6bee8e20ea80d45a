// SPDX-License-Identifier: Apache-2.0
// Images in memory, and reading them from PNG and JPEG files. Such files come from outside:
// kMostPixels bounds memory and time, whatever the header says.
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

/// True if the name ends like that of an image: .png, .jpg or .jpeg.
bool is_image_name(const std::filesystem::path& path);

/// The size in the file's header. `place` names the file in messages. Throws Error{Data} for a file
/// that is neither PNG nor JPEG, or has more than kMostPixels.
ImageSize read_image_size(std::span<const std::byte> bytes, const std::string& place);

/// Decodes the whole image: grey becomes RGB, transparency is dropped, 16-bit values lose the lower
/// eight bits, and JPEG's orientation is ignored. Throws Error{Data} for a damaged or truncated
/// file and Error{Unsupported} for a JPEG with four colour components. Memory: the image, and for a
/// progressive JPEG twice as much again.
Image decode_image(std::span<const std::byte> bytes, const std::string& place);

}  // namespace tessera::data::images

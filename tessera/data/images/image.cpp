// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/images/image.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/images/decoders.h"

namespace tessera::data::images {

void refuse_image(const std::string& place, const std::string& what) {
  throw Error(Error::Kind::Data,
              fmt::format("{}: {}", place, what),
              "leave the file out, or copy it again from where it came from");
}

void check_size(const ImageSize& size, const std::string& place) {
  constexpr std::int64_t kLongest = 1 << 16;
  const bool possible = size.width >= 1 && size.height >= 1 && size.width <= kLongest &&
                        size.height <= kLongest && size.width * size.height <= kMostPixels;
  if (possible) return;
  refuse_image(place,
               fmt::format("a picture of {} x {} pixels, and at most {} are read",
                           size.width,
                           size.height,
                           text::with_commas(kMostPixels)));
}

bool is_image_name(const std::filesystem::path& path) {
  const std::string ending = text::lower(path.extension().string());
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

namespace {

Image decode(std::span<const std::byte> bytes, const std::string& place, bool whole) {
  if (is_png(bytes)) return decode_png(bytes, place, whole);
  if (is_jpeg(bytes)) return decode_jpeg(bytes, place, whole);
  refuse_image(place, bytes.empty() ? "the file is empty" : "neither a PNG nor a JPEG");
}

}  // namespace

ImageSize read_image_size(std::span<const std::byte> bytes, const std::string& place) {
  return decode(bytes, place, /*whole=*/false).size;
}

Image decode_image(std::span<const std::byte> bytes, const std::string& place) {
  return decode(bytes, place, /*whole=*/true);
}

}  // namespace tessera::data::images

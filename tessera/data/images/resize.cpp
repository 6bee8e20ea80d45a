// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/images/resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::data::images {
namespace {

constexpr int kWeightBits = 22;

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

/// The radius of the filter in pixels of the larger image.
double reach(Resample how) {
  switch (how) {
    case Resample::Lanczos:
      return 3.0;
    case Resample::Bilinear:
      return 1.0;
    case Resample::Bicubic:
      return 2.0;
  }
  return 1.0;
}

double weight_at(Resample how, double x) {
  constexpr double kCubic = -0.5;  // parameter of Keys' cubic filter
  x = std::abs(x);
  if (x >= reach(how)) return 0.0;
  switch (how) {
    case Resample::Lanczos:
      return sinc(x) * sinc(x / 3.0);
    case Resample::Bilinear:
      return 1.0 - x;
    case Resample::Bicubic:
      return x < 1.0 ? ((kCubic + 2.0) * x - (kCubic + 3.0)) * x * x + 1.0
                     : ((x - 5.0) * x + 8.0) * x * kCubic - 4.0 * kCubic;
  }
  return 0.0;
}

/// The source pixels of a destination pixel.
struct Taps {
  std::int64_t first = 0;
  std::vector<std::int64_t> weights;
};

std::vector<Taps> taps_of(std::int64_t from, std::int64_t to, Resample how) {
  const double scale = static_cast<double>(from) / static_cast<double>(to),
               width = std::max(scale, 1.0), support = reach(how) * width;
  std::vector<Taps> out(static_cast<std::size_t>(to));
  for (std::int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(centre - support + 0.5));
    const auto end = std::min(from, static_cast<std::int64_t>(centre + support + 0.5));
    std::vector<double> exact;
    double sum = 0.0;
    for (std::int64_t at = first; at < end; ++at) {
      exact.push_back(weight_at(how, (static_cast<double>(at) - centre + 0.5) / width));
      sum += exact.back();
    }
    Taps& taps = out[static_cast<std::size_t>(i)];
    taps.first = first;
    for (const double weight : exact) {
      const double share = sum != 0.0 ? weight / sum : weight;
      taps.weights.push_back(
          static_cast<std::int64_t>(std::round(share * static_cast<double>(1 << kWeightBits))));
    }
  }
  return out;
}

std::uint8_t rounded(std::int64_t sum) {
  constexpr std::int64_t kHalf = std::int64_t{1} << (kWeightBits - 1);
  return static_cast<std::uint8_t>(std::clamp<std::int64_t>((sum + kHalf) >> kWeightBits, 0, 255));
}

/// Resamples each row to another width.
Image resized_rows(const Image& image, std::int64_t width, Resample how) {
  const std::vector<Taps> all = taps_of(image.size.width, width, how);
  Image out{{width, image.size.height}, {}};
  out.rgb.resize(static_cast<std::size_t>(width * image.size.height) * 3);
  std::uint8_t* to = out.rgb.data();
  for (std::int64_t y = 0; y < image.size.height; ++y) {
    const std::uint8_t* const row = image.rgb.data() + y * image.size.width * 3;
    for (const Taps& taps : all) {
      for (std::int64_t c = 0; c < 3; ++c) {
        std::int64_t sum = 0;
        const std::uint8_t* from = row + taps.first * 3 + c;
        for (const std::int64_t weight : taps.weights) {
          sum += weight * *from;
          from += 3;
        }
        *to++ = rounded(sum);
      }
    }
  }
  return out;
}

Image resized_columns(const Image& image, std::int64_t height, Resample how) {
  const std::vector<Taps> all = taps_of(image.size.height, height, how);
  const std::int64_t row = image.size.width * 3;
  Image out{{image.size.width, height}, {}};
  out.rgb.resize(static_cast<std::size_t>(row * height));
  std::vector<std::int64_t> sums(static_cast<std::size_t>(row));
  std::uint8_t* to = out.rgb.data();
  for (const Taps& taps : all) {
    std::ranges::fill(sums, 0);
    const std::uint8_t* from = image.rgb.data() + taps.first * row;
    for (const std::int64_t weight : taps.weights) {
      for (std::int64_t i = 0; i < row; ++i)
        sums[static_cast<std::size_t>(i)] += weight * from[i];
      from += row;
    }
    for (const std::int64_t sum : sums)
      *to++ = rounded(sum);
  }
  return out;
}

}  // namespace

Image resized(const Image& image, const ImageSize& size, Resample how) {
  TESSERA_ASSERT(size.width > 0 && size.height > 0);
  Image out = image;
  if (size.width != out.size.width) out = resized_rows(out, size.width, how);
  if (size.height != out.size.height) out = resized_columns(out, size.height, how);
  return out;
}

Image cropped(const Image& image, std::int64_t left, std::int64_t top, const ImageSize& size) {
  TESSERA_ASSERT(left >= 0 && top >= 0 && left + size.width <= image.size.width &&
                 top + size.height <= image.size.height);
  Image out{size, {}};
  out.rgb.reserve(static_cast<std::size_t>(size.width * size.height) * 3);
  for (std::int64_t y = top; y < top + size.height; ++y) {
    const std::uint8_t* const row = image.rgb.data() + (y * image.size.width + left) * 3;
    out.rgb.insert(out.rgb.end(), row, row + size.width * 3);
  }
  return out;
}

}  // namespace tessera::data::images

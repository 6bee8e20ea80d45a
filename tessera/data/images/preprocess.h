// SPDX-License-Identifier: Apache-2.0
// From a picture to the numbers that a model reads, as Hugging Face's preprocessor_config.json says
// it: resize, crop, rescale, normalize, in this order.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "tessera/data/images/image.h"
#include "tessera/data/images/resize.h"

namespace tessera::data::images {

struct Preprocessing {
  bool resize = true;
  ImageSize size;                             ///< to which pictures are resized
  std::optional<std::int64_t> shortest_edge;  ///< in place of `size`: both sides by one factor
  Resample resample = Resample::Bilinear;
  std::optional<ImageSize> crop;  ///< the middle of the picture
  bool rescale = true;
  double factor = 1.0 / 255.0;
  bool normalize = true;
  std::array<double, 3> mean = {0.5, 0.5, 0.5}, deviation = {0.5, 0.5, 0.5};
};

/// Square pictures with values from -1 to 1, which is ViT's own way.
Preprocessing default_preprocessing(std::int64_t size);

/// Reads a preprocessor_config.json; absent keys are those of default_preprocessing(224).
/// Error{Format} for values that cannot be, Error{Unsupported} for keys that compute something
/// else.
Preprocessing read_preprocessing(const std::filesystem::path& path);

/// The size of what preprocess() makes of a picture.
ImageSize preprocessed_size(const Preprocessing& how, const ImageSize& picture);

/// Writes the picture as [3, height, width]. Error{Data} with `place` for a picture that is smaller
/// than the crop.
void preprocess(const Image& image,
                const Preprocessing& how,
                const std::string& place,
                std::span<float> out);

/// All of it in one line, for a fingerprint.
std::string text_of(const Preprocessing& how);

}  // namespace tessera::data::images

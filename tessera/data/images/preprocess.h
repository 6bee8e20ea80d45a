// SPDX-License-Identifier: Apache-2.0
// Converts an image to the numbers that a model reads, as specified by Hugging Face's
// preprocessor_config.json: resize, crop, rescale, normalize, in this order.
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
  ImageSize size;  ///< to which images are resized
  /// Instead of `size`: scales both sides by one factor.
  std::optional<std::int64_t> shortest_edge;
  Resample resample = Resample::Bilinear;
  std::optional<ImageSize> crop;  ///< the centre of the image
  bool rescale = true;
  double factor = 1.0 / 255.0;
  bool normalize = true;
  std::array<double, 3> mean = {0.5, 0.5, 0.5}, deviation = {0.5, 0.5, 0.5};
};

/// Square images with values from -1 to 1, as ViT uses.
Preprocessing default_preprocessing(std::int64_t size);

/// Reads a preprocessor_config.json; absent keys are those of default_preprocessing(224). Throws
/// Error{Format} for impossible values and Error{Unsupported} for keys that compute something else.
Preprocessing read_preprocessing(const std::filesystem::path& path);

/// The contents of a preprocessor_config.json that read_preprocessing() and transformers'
/// ViTImageProcessor read; CLIPImageProcessor where images are cropped or keep their shape.
std::string preprocessor_config(const Preprocessing& how);

/// The size of an image after preprocess().
ImageSize preprocessed_size(const Preprocessing& how, const ImageSize& picture);

/// Writes the image as [3, height, width]. Throws Error{Data} with `place` for an image that is
/// smaller than the crop.
void preprocess(const Image& image,
                const Preprocessing& how,
                const std::string& place,
                std::span<float> out);

/// All settings in one line, for a fingerprint.
std::string text_of(const Preprocessing& how);

}  // namespace tessera::data::images
